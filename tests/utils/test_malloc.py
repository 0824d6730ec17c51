from __future__ import annotations

import ctypes
import platform

import pytest

from robopolicy.utils.malloc import release_memory


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's heap")
def test_holes_go_back_to_the_system():
    libc = ctypes.CDLL("libc.so.6")
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    blocks = [libc.malloc(60_000) for _ in range(2_000)]  # below the threshold of mmap
    for block in blocks:
        ctypes.memset(block, 1, 60_000)
    for block in blocks[:-1]:  # the last one pins the top of the heap, so free() alone returns nothing
        libc.free(block)
    before = resident()
    release_memory()
    assert before - resident() > 80e6
    libc.free(blocks[-1])
