"""Pictures of masks: all links, and the number of links per input (figures 13 and 14)."""

import numpy as np
from matplotlib.figure import Figure as Canvas

from experiments.reporting.figures import COLOURS, WIDTH, add_legend, new_canvas


def mask_images(first: np.ndarray | None, last: np.ndarray | None, *, title: str) -> Canvas:
    """A layer's mask `[in, out]` before and after: links in black, one row per output."""
    shape = next(m.shape for m in (first, last) if m is not None)
    flat = shape[1] * 4 < shape[0]
    canvas = Canvas(figsize=(WIDTH, 2.4 if flat else 3.2))
    panels = canvas.subplots(2, 1) if flat else canvas.subplots(1, 2)
    for axes, mask, name in zip(panels, (first, last), ("first mask", "final mask"), strict=True):
        axes.set_title(name if mask is not None else f"{name}: missing")
        axes.set(xlabel="input", ylabel="output")
        if mask is None:
            axes.set(xticks=[], yticks=[])
            continue
        join = ": " if flat else "\n"
        axes.set_title(f"{name}{join}{int(mask.sum()):,} of {mask.size:,} links", fontsize=8.5)
        axes.imshow(~mask.T, cmap="gray", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axes.set_yticks([0, shape[1] - 1] if shape[1] > 1 else [0])
        for side in ("top", "right"):
            axes.spines[side].set_visible(True)
    canvas.suptitle(title, fontsize=9.5, y=0.94)
    if flat:
        canvas.subplots_adjust(0.13, 0.2, 0.97, 0.74, hspace=1.6)
        panels[0].set_xlabel("")
    else:
        canvas.subplots_adjust(0.13, 0.16, 0.97, 0.73, wspace=0.3)
        panels[1].set_ylabel("")
    return canvas


def connections(first: np.ndarray | None, last: np.ndarray | None, *, title: str) -> Canvas:
    """Links from each input dimension, before and after."""
    canvas, (axes,) = new_canvas(title, ["first mask", "final mask"])
    for mask, name, colour, dash in (
        (first, "first mask", COLOURS[0], "--"),
        (last, "final mask", COLOURS[1], "-"),
    ):
        if mask is not None:
            counts = mask.sum(axis=1)
            axes.stairs(
                counts,
                np.arange(counts.size + 1) + 0.5,
                baseline=None,
                color=colour,
                ls=dash,
                label=name,
            )
    axes.set(xlabel="input dimension", ylabel="links", ylim=(0, None))
    add_legend(canvas, axes)
    return canvas
