"""Complete verbs, groups, options and keys in a shell, at the tabulator."""

from __future__ import annotations

from robopolicy.cli.verbs import OPTIONS, VERBS, find_verb
from robopolicy.config.compose import compose
from robopolicy.config.help import meanings
from robopolicy.config.hydra_configs import choices, group_files
from robopolicy.core.errors import RobopolicyError

SCRIPT = """_robopolicy() {
    local IFS=$'\\n' program=${1:-robopolicy}
    COMPREPLY=($("${program/#\\~/$HOME}" --complete "${COMP_LINE:0:COMP_POINT}"))
    [[ ${#COMPREPLY[@]} -ne 1 || ${COMPREPLY[0]} != *[=.] ]] || compopt -o nospace
}
complete -o default -F _robopolicy robopolicy"""


def candidates(line: str) -> list[str]:
    """Return the ends of a command line's last word; after `=`, which separates words in bash, those of its value."""
    _, *words, last = [*(line.split() or [""]), *([""] if line[-1:].isspace() or not line.split()[1:] else [])]
    name = next((n for n in (" ".join(words[:2]), " ".join(words[:1])) if n in VERBS), "")
    if not name:
        begun = " ".join([*words, last])
        return list(dict.fromkeys(n.split()[len(words)] for n in VERBS if n.startswith(begun)))
    verb, (key, equals, value) = find_verb(name), last.partition("=")
    if last.startswith("-") or not verb.config:
        return [option for option in OPTIONS if option.startswith(last)]
    groups = {group: list(group_files()[group]) for group in choices(verb.file) if group in group_files()}
    if equals:
        return [option for option in groups.get(key, ()) if option.startswith(value)]
    chosen = [word for word in words[len(name.split()) :] if "=" in word]
    try:
        keys = meanings(verb, compose(verb, chosen, checked=False))
    except RobopolicyError:
        keys = {}
    return sorted(f"{key}=" for key in {*groups, *keys} if key.startswith(last))
