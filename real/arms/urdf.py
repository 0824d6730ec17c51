"""Read the joints of a URDF from an unknown source: bounded, without entities, without any other file.

Only direct children of <robot> count. Meshes, transmissions and plug-ins in the text are skipped unread.
Format: http://wiki.ros.org/urdf/XML.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn
from xml.parsers import expat

from robopolicy.real.safety.errors import SafetyError

LARGEST = 2**24  # characters: meshes are not in it
ELEMENTS, DEPTH = 200_000, 64
JOINTS = 1000  # of a robot; chains are searched by link
FAR = 10.0  # m between two joints of an arm; more is no metre
TURN = 2 * math.pi + 1e-3  # rad: no file turns a frame further

Triple = tuple[float, float, float]


class UrdfError(SafetyError):
    """A URDF that cannot be read, or whose arm is none that is supported."""


@dataclass(frozen=True)
class Mimic:
    """q = multiplier · q of `joint` + offset."""

    joint: str
    multiplier: float
    offset: float


@dataclass(frozen=True)
class UrdfJoint:
    """A joint between two links. NaN stands for a limit that is not given."""

    name: str
    type: str
    parent: str
    child: str
    xyz: Triple = (0.0, 0.0, 0.0)  # m
    rpy: Triple = (0.0, 0.0, 0.0)  # rad
    axis: Triple = (1.0, 0.0, 0.0)
    lower: float = math.nan  # rad, m
    upper: float = math.nan
    velocity: float = math.nan  # rad/s, m/s
    effort: float = math.nan  # N·m, N
    soft: tuple[float, float] = (math.nan, math.nan)  # lower and upper, of its <safety_controller>
    mimic: Mimic | None = None


@dataclass(frozen=True)
class Urdf:
    """The joints of a robot, by name."""

    name: str
    joints: Mapping[str, UrdfJoint]
    meshes: int  # named in the text, and not needed

    def above(self, link: str) -> UrdfJoint | None:
        """Return the joint that moves a link; None at the root."""
        return self._above.get(link)

    @cached_property
    def _above(self) -> dict[str, UrdfJoint]:
        return {j.child: j for j in self.joints.values()}


def read_urdf(text: str) -> Urdf:
    """Read the joints of a URDF.

    Raises:
        UrdfError: too large or deep, no XML, DOCTYPE or entities, no URDF, a joint without name, parent or child, two
            of a name, a link with two parents, links in a circle, or a number that is none; named.
    """
    reader = _Reader()
    reader.parse(text)
    joints: dict[str, UrdfJoint] = {}
    for element in reader.found:
        joint = _joint(element)
        if joint.name in joints:
            raise UrdfError(f"urdf: two joints are called {joint.name!r}. Expected one")
        joints[joint.name] = joint
    _check_tree(joints)
    return Urdf(reader.robot, joints, reader.meshes)


Element = dict[str, dict[str, str]]  # attributes by tag: of a joint, under "", and of its children


class _Reader:
    """Collect the attributes of <robot><joint> and of its children."""

    def __init__(self) -> None:
        self.found: list[Element] = []
        self.robot, self.meshes = "", 0
        self._path: list[str] = []
        self._count = 0

    def parse(self, text: str) -> None:
        if len(text) > LARGEST:
            raise UrdfError(f"urdf: expected at most {LARGEST} characters, found {len(text)}")
        parser = expat.ParserCreate("utf-8")  # whatever the text itself declares
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = parser.ExternalEntityRefHandler = _refuse
        try:
            parser.Parse(text.encode("utf-8"), True)
        except (expat.ExpatError, ValueError, MemoryError) as error:  # ValueError: lone surrogates
            raise UrdfError(f"urdf: not readable as XML ({str(error)!a})") from error

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > ELEMENTS or len(self._path) >= DEPTH:
            raise UrdfError(f"urdf: expected at most {ELEMENTS} elements, {DEPTH} deep")
        if tag.startswith("xacro:"):
            raise UrdfError(f"urdf: found <{tag}>: a xacro file. Expected a URDF: run `xacro file.xacro > file.urdf`")
        path = self._path
        if not path:
            if tag != "robot":
                raise UrdfError(f"urdf: expected <robot>, found <{tag[:40]}>")
            self.robot = attributes.get("name", "")
        self.meshes += tag == "mesh"
        if tag == "joint" and path == ["robot"]:
            if len(self.found) >= JOINTS:
                raise UrdfError(f"urdf: expected at most {JOINTS} joints")
            self.found.append({"": attributes})
        elif len(path) == 2 and path[1] == "joint":
            self.found[-1][tag] = attributes
        path.append(tag)

    def _end(self, tag: str) -> None:
        del tag
        self._path.pop()


def _refuse(*_: object) -> NoReturn:
    raise UrdfError("urdf: found DOCTYPE or an entity. Expected plain XML: a robot's description needs neither")


def _joint(element: Element) -> UrdfJoint:
    name = element[""].get("name", "")
    where = f"urdf: joint {name[:80]!r}"
    parent, child = (element.get(end, {}).get("link", "") for end in ("parent", "child"))
    if not (name and parent and child):
        raise UrdfError(f"{where}: expected a name, a <parent link=…> and a <child link=…>")
    if left := [word for word in (name, parent, child) if "${" in word or "$(" in word]:
        raise UrdfError(f"{where}: found {left[0][:80]!r}, which xacro fills in. Run `xacro file.xacro > file.urdf`")
    origin, mimic = element.get("origin", {}), element.get("mimic")
    rpy = _triple(origin.get("rpy"), (0.0, 0.0, 0.0), f"{where}: origin rpy")
    if max(map(abs, rpy)) > TURN:
        raise UrdfError(f"{where}: origin rpy is {rpy}, more than a turn. A URDF is in radians: are these degrees?")

    def number(tag: str, key: str, default: float) -> float:
        return _numbers(element.get(tag, {}).get(key), (default,), f"{where}: {tag} {key}")[0]

    controller = "safety_controller"
    soft = (number(controller, "soft_lower_limit", math.nan), number(controller, "soft_upper_limit", math.nan))
    return UrdfJoint(
        name, element[""].get("type", ""), parent, child,
        xyz=_triple(origin.get("xyz"), (0.0, 0.0, 0.0), f"{where}: origin xyz"),
        rpy=rpy,
        axis=_triple(element.get("axis", {}).get("xyz"), (1.0, 0.0, 0.0), f"{where}: axis xyz"),
        **{k: number("limit", k, math.nan) for k in ("lower", "upper", "velocity", "effort")},
        soft=soft,
        mimic=None if mimic is None else Mimic(
            mimic.get("joint", ""), number("mimic", "multiplier", 1.0), number("mimic", "offset", 0.0)
        ),
    )  # fmt: skip


def _numbers(text: str | None, default: tuple[float, ...], where: str) -> tuple[float, ...]:
    if text is None:
        return default
    try:
        found = tuple(float(word) for word in text[:1000].split())
    except ValueError:
        found = ()
    if len(found) != len(default) or not all(math.isfinite(x) for x in found):
        raise UrdfError(f"{where}: expected {len(default)} finite number(s), found {text[:80]!r}")
    return found


def _triple(text: str | None, default: Triple, where: str) -> Triple:
    x, y, z = _numbers(text, default, where)
    return x, y, z


def _check_tree(joints: Mapping[str, UrdfJoint]) -> None:
    """Refuse a link with two parents, and links in a circle."""
    above: dict[str, UrdfJoint] = {}
    for joint in joints.values():
        if (other := above.setdefault(joint.child, joint)) is not joint:
            raise UrdfError(f"urdf: link {joint.child!r} hangs on both {other.name!r} and {joint.name!r}. Expected one")
    rooted: set[str] = set()
    for start in above:
        way, link = set[str](), start
        while link in above and link not in rooted:
            if link in way:
                raise UrdfError(f"urdf: joint {above[link].name!r}: its links are in a circle. Expected a tree")
            way.add(link)
            link = above[link].parent
        rooted |= way
