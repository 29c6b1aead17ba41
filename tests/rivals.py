"""Two processes that compute the same cells into one store and are killed at any time, again and again.

Usage: rivals.py FOLDER KILLS. Prints how many kills and rounds there were; fails unless every store is in the
end byte for byte that of a process which nobody disturbed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from made_up import Images, linear, rule

import robustbench_quest as rbq

THREATS = (rbq.threat("clean"), rbq.threat("pgd", eps="8/255", steps=3))
MODEL, DATA = rule(linear), Images(60)


def work(root: Path) -> None:
    """Compute all cells; each block is small, so that most of the time goes into writing."""
    for threat in THREATS:
        rbq.evaluate(MODEL, DATA, threat, store=str(root), block_size=3, batch_size=3)


def rival(root: Path) -> int:
    """Start a process that works, and return its id."""
    child = os.fork()
    if child:
        return child
    try:
        work(root)
    finally:
        os._exit(0)


def disturbed(root: Path, kills: int, draw: random.Random) -> int:
    """Let two rivals work until both are done, and kill one at a time, ``kills`` times at most."""
    killed, running = 0, {rival(root), rival(root)}
    while running:
        time.sleep(draw.uniform(0, 0.12))
        victim = draw.choice(sorted(running))
        if killed < kills:
            os.kill(victim, signal.SIGKILL)
        _, status = os.waitpid(victim, 0)
        running.remove(victim)
        if os.WIFSIGNALED(status):
            killed += 1
            running.add(rival(root))
    return killed


def contents(root: Path) -> dict[str, bytes]:
    """Return every file that is the same whoever wrote it: all but side files and torn temporary ones."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and (path.suffix == ".parquet" or path.name in ("cell.json", "DONE.json"))
    }


def main(folder: Path, kills: int) -> None:
    """Run rounds, each with a store of its own, until there were so many kills."""
    torch.set_num_threads(1)
    work(folder / "calm")
    expected, draw, killed, rounds = contents(folder / "calm"), random.Random(0), 0, 0
    while killed < kills:
        rounds += 1
        root = folder / f"round-{rounds}"
        killed += disturbed(root, kills - killed, draw)
        assert contents(root) == expected, root
    print(f"{killed} kills in {rounds} rounds, {len(expected)} files each")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
