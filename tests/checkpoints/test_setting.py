"""How sources that say different things become one setting."""

from __future__ import annotations

from robustbench_quest.checkpoints.setting import Setting, joined, merge, pick, remarks


def test_the_first_source_wins_and_those_that_differ_are_named() -> None:
    found = pick("mean", [("flag", None), ("a", (0.5, 0.4)), ("b", (0.5, 0.4)), ("c", (1, 2)), ("d", None)])
    assert found == Setting("mean", (0.5, 0.4), "a", "c: 1, 2")
    assert found.text == "0.5, 0.4"
    assert pick("mean", [("flag", None)]) is None


def test_falsehood_and_nought_are_values() -> None:
    assert pick("resize", [("a", 0), ("b", 256)]) == Setting("resize", 0, "a", "b: 256")
    assert pick("bias", [("a", False)]) == Setting("bias", False, "a")


def test_options_are_merged_one_by_one() -> None:
    found = merge([("flag", {"depth": 2}), ("args", {"depth": 3, "heads": 4}), ("x", {"heads": 4})])
    assert found == {
        "depth": Setting("depth", 2, "flag", "args: depth=3"),
        "heads": Setting("heads", 4, "args"),
    }


def test_one_source_of_all_options_is_named_once() -> None:
    parts = [Setting("a", 1, "flag"), Setting("b", 2, "flag")]
    assert joined("options", "a=1", parts).source == "flag"
    assert joined("options", "a=1", [*parts, Setting("c", 3, "args", "x: c=4")]) == Setting(
        "options", "a=1", "a, b: flag; c: args", "x: c=4"
    )


def test_the_source_of_what_the_options_belong_to_goes_without_saying() -> None:
    main = Setting("attention", "elliptical", "args", "sidecar: quest")
    parts = [Setting("layers", "1-", "args"), Setting("estimator", "mean", "flag", "args: estimator=median")]
    found = joined("attention", "elliptical(...)", parts, main)
    assert found.source == "args; estimator: flag"
    assert found.others == "sidecar: quest; args: estimator=median"
    assert joined("attention", "quest", [], main).source == "args"


def test_remarks_that_say_nothing_are_left_out() -> None:
    assert remarks(["", "a", "", "b"]) == "a; b"
