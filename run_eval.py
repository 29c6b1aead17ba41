"""Evaluate a checkpoint: the same command as ``rbq eval``."""

from robustbench_quest.cli import eval_command

if __name__ == "__main__":
    eval_command()
