"""Lines over rounds, as a picture: round ticks, a light grid, name and last value at the end of each line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedframe.report.canvas import SERIES, Canvas, num, shorten, width_of, wrap
from fedframe.report.scale import labels, ticks

Point = tuple[float, float]

WIDTH, PAD, PLOT, LABEL = 760, 20, 300, 15  # pixels: card, rim, height of the plot, height of a label
DASHES = ("", "7 4", "2 4")  # tell lines apart when the colours come round again
MOST_POINTS = 300


def curves_picture(
    series: Mapping[str, Sequence[Point]], title: str, x_label: str, y_label: str, caption: str = ""
) -> str:
    """Draw lines of (x, y) points as an SVG text; points that are not finite leave a gap in their line.

    Parameters
    ----------
    series
        The points of each line by its name, in the order of x.
    title, x_label, y_label
        The headline and what the axes show.
    caption
        Small print below: setting, seeds, what is averaged.
    """
    canvas = Canvas()
    drawn = {name: points for name, points in series.items() if any(map(_finite, points))}
    known = [point for points in drawn.values() for point in points if _finite(point)]
    room = WIDTH - 2 * PAD
    headline, small = wrap(title, room, 16), wrap(caption, room, 11)
    for i, line in enumerate(headline):
        canvas.text(PAD, 34 + 21 * i, line, size=16, bold=True)
    top = 34 + 21 * len(headline) + 22
    bottom = top + max(PLOT, LABEL * len(drawn))
    if known:
        _plot(canvas, drawn, known, (top, bottom), x_label, y_label)
    else:
        canvas.text(WIDTH / 2, (top + bottom) / 2, "nothing measured yet", "dim", 13, "middle")
    below = bottom + 44
    for i, line in enumerate(small):
        canvas.text(PAD, below + 14 + 15 * i, line, "dim", 11)
    height = below + (15 * len(small) + 16 if small else 8)
    ends = "; ".join(f"{name}: {_last(points)[1]:.4g}" for name, points in drawn.items())
    return canvas.render(WIDTH, height, title, f"{y_label} over {x_label}, last values. {ends}. {caption}")


def _plot(
    canvas: Canvas,
    series: Mapping[str, Sequence[Point]],
    known: Sequence[Point],
    span: tuple[float, float],
    x_label: str,
    y_label: str,
) -> None:
    top, bottom = span
    xs, ys = [float(x) for x, _ in known], [float(y) for _, y in known]
    y_ticks = ticks(min(ys), max(ys), 6)
    y_texts = labels(y_ticks)
    places = max(0, min(6, math.ceil(-math.log10((y_ticks[-1] - y_ticks[0]) / 300))))  # finer than the eye sees
    lasts = {name: f"{_last(points)[1]:,.{places}f}" for name, points in series.items()}
    left = PAD + max(width_of(text, 11) for text in y_texts) + 10
    widest = max(width_of(f"{name} {lasts[name]}") for name in series)
    right = WIDTH - PAD - min(widest, 210) - 14

    x_low, x_high = (min(xs), max(xs)) if min(xs) < max(xs) else (min(xs) - 1, max(xs) + 1)
    whole = all(x.is_integer() for x in xs)
    x_ticks = [x for x in ticks(x_low, x_high, 8, whole) if x_low <= x <= x_high]

    def at_x(x: float) -> float:
        return left + (x - x_low) / (x_high - x_low) * (right - left)

    def at_y(y: float) -> float:
        return bottom - (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (bottom - top)

    for y, text in zip(y_ticks, y_texts, strict=True):
        canvas.line(left, at_y(y), right, at_y(y), "grid")
        canvas.text(left - 8, at_y(y) + 4, text, "dim", 11, "end")
    canvas.line(left, bottom, right, bottom, "axis")
    for x, text in zip(x_ticks, labels(x_ticks), strict=True):
        canvas.line(at_x(x), bottom, at_x(x), bottom + 4, "axis")
        canvas.text(at_x(x), bottom + 18, text, "dim", 11, "middle")
    canvas.text(PAD, top - 12, shorten(y_label, WIDTH - 2 * PAD), "dim", 12)
    canvas.text((left + right) / 2, bottom + 36, shorten(x_label, right - left), "dim", 12, "middle")

    ends = {name: _last(points) for name, points in series.items()}
    heights = _spread({name: at_y(end[1]) for name, end in ends.items()}, top, bottom)
    for i, (name, points) in enumerate(series.items()):
        colour = i % len(SERIES)
        dash = DASHES[i // len(SERIES) % len(DASHES)]
        x, y = at_x(ends[name][0]), at_y(ends[name][1])
        _line(canvas, [[(at_x(a), at_y(b)) for a, b in piece] for piece in _pieces(points)], colour, dash)
        canvas.add(f'<circle cx="{num(x)}" cy="{num(y)}" r="3" class="ff-t{colour}"/>')
        if abs(heights[name] - y) > 2 or x < right - 1:
            leader = f"M{num(x)} {num(y)}L{num(right + 9)} {num(heights[name])}"
            canvas.add(f'<path d="{leader}" class="ff-s{colour}" fill="none" stroke-dasharray="1 3"/>')
        words = shorten(name, 210 - width_of(f" {lasts[name]}"))
        canvas.text(right + 12, heights[name] + 4, f"{words} {lasts[name]}", f"t{colour}", 12)


def _line(canvas: Canvas, pieces: list[list[Point]], colour: int, dash: str) -> None:
    path = "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in piece) for piece in pieces)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    style = f'class="ff-s{colour}" fill="none" stroke-width="2" stroke-linejoin="round" stroke-linecap="round"'
    canvas.add(f'<path d="{path}" {style}{dashes}/>')
    dots = [point for piece in pieces for point in piece]
    for x, y in dots if len(dots) <= 12 else (p[0] for p in pieces if len(p) == 1):
        canvas.add(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" class="ff-t{colour}"/>')


def _pieces(points: Sequence[Point]) -> list[list[Point]]:
    """Cut a line where a value is missing, and thin out what is finer than the picture."""
    pieces: list[list[Point]] = [[]]
    for point in points:
        if _finite(point):
            pieces[-1].append(point)
        elif pieces[-1]:
            pieces.append([])
    return [_thin(piece) for piece in pieces if piece]


def _thin(points: list[Point]) -> list[Point]:
    """Keep the lowest and the highest of each run of points, so that no spike is lost, and both ends."""
    if len(points) <= MOST_POINTS:
        return points
    size = math.ceil(2 * len(points) / MOST_POINTS)
    kept = {0, len(points) - 1}
    for start in range(0, len(points), size):
        run = range(start, min(start + size, len(points)))
        kept |= {min(run, key=lambda i: points[i][1]), max(run, key=lambda i: points[i][1])}
    return [points[i] for i in sorted(kept)]


def _spread(wanted: Mapping[str, float], top: float, bottom: float) -> dict[str, float]:
    """Move labels apart, each as little as it takes: those that collide become one block about their mean."""
    order = sorted(wanted, key=lambda name: wanted[name])
    blocks: list[list[float]] = []
    for name in order:
        blocks.append([wanted[name]])
        while len(blocks) > 1 and _first(blocks[-1], top, bottom) < _first(blocks[-2], top, bottom) + LABEL * len(
            blocks[-2]
        ):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    heights = [_first(block, top, bottom) + LABEL * i for block in blocks for i in range(len(block))]
    return dict(zip(order, heights, strict=True))


def _first(block: list[float], top: float, bottom: float) -> float:
    """Where the first label of a block lies, kept inside the plot."""
    reach = LABEL * (len(block) - 1)
    return max(top, min(sum(block) / len(block) - reach / 2, bottom - reach))


def _finite(point: Point) -> bool:
    return point[1] is not None and math.isfinite(point[0]) and math.isfinite(point[1])


def _last(points: Sequence[Point]) -> Point:
    return next(point for point in reversed(points) if _finite(point))
