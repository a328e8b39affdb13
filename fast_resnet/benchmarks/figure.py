"""Draw the README's figure from the rows that measure.py wrote.

python fast_resnet/benchmarks/figure.py      # needs matplotlib and pandas
"""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

HERE = Path(__file__).parent
WAYS = {"eager": "#8c8c8c", "compile": "#4a90d9", "fast": "#e07b39"}
NETWORKS = {"resnet50": "ResNet-50", "resnet101": "ResNet-101", "resnet152": "ResNet-152"}
INK = "#808080"  # readable on white and on black


def main() -> None:
    rows = pd.read_json(HERE / "measured_h100.jsonl", lines=True)
    speeds = rows.query("dtype == 'fp16' and batch == 256").pivot(
        index="network", columns="way", values="images_per_s"
    )
    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    for number, (way, color) in enumerate(WAYS.items()):
        positions = [number + (number - 1) * 0.28 for index in range(len(NETWORKS))]
        bars = axes.bar(positions, speeds.loc[list(NETWORKS), way], 0.26, color=color, label=way)
        axes.bar_label(bars, fmt="{:,.0f}", color=INK)
    axes.set_xticks(range(len(NETWORKS)), list(NETWORKS.values()))
    axes.set_title("Training on one H100, fp16, batch 256: images/s", color=INK)
    axes.legend(frameon=False, labelcolor=INK)
    axes.spines[:].set_visible(False)
    axes.set_ylim(top=1.12 * speeds.max().max())
    axes.set_yticks([])
    axes.tick_params(colors=INK, length=0)
    figure.savefig(HERE / "speed_h100.png", dpi=130, transparent=True)


if __name__ == "__main__":
    main()
