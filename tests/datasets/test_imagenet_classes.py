"""ImageNet's class table against torchvision's."""

from __future__ import annotations

import subprocess
import sys

from torchvision.models import ResNet50_Weights

from robustbench_quest.datasets.imagenet_classes import class_names, wnids

# Two classes are called crane and two maillot; torchvision tells them apart.
RENAMED = {134: "crane bird", 639: "maillot tank suit"}


def test_the_thousand_wnids_are_sorted_as_every_model_expects():
    assert len(wnids()) == 1000
    assert list(wnids()) == sorted(set(wnids()))
    assert (wnids()[0], wnids()[999]) == ("n01440764", "n15075141")


def test_names_equal_torchvisions():
    theirs = ResNet50_Weights.IMAGENET1K_V1.meta["categories"]
    ours = [name.partition(",")[0] for name in class_names()]
    differ = {index: theirs[index] for index in range(1000) if ours[index].lower() != theirs[index].lower()}
    assert differ == RENAMED


def test_reading_labels_imports_no_torch():
    code = (
        "import sys; from robustbench_quest.datasets import open_dataset, folder; "
        "from robustbench_quest.datasets.imagenet_classes import class_names; class_names(); "
        "print(sorted({'torch', 'timm', 'torchvision', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
