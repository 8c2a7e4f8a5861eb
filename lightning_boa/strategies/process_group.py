"""The end of a process group that Lightning has made.

gloo's threads may still hold tensors when the interpreter shuts down, and then abort a process that has done its
work (pytorch #179291, #190489). Lightning leaves the group at exit under nccl only. After an exception it is left
alone: other ranks may be inside a collective, and leaving would wait for them.
"""

from __future__ import annotations

import atexit

import torch.distributed as dist


def leave_at_exit() -> None:
    """Leave the process group before the interpreter shuts down."""
    atexit.register(leave)


def do_not_leave() -> None:
    """Let the process end without a word to the others: this rank has failed."""
    atexit.unregister(leave)


def leave() -> None:
    """Leave the process group, if there is one; every collective must be over."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
