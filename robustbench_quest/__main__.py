"""``python -m robustbench_quest`` is ``rbq``."""

from .cli import main

main()
