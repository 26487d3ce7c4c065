"""Draws panels of a dashboard with what Prometheus answered: page_of([(title, type, {label: points})])"""

import html

WIDTH, HEIGHT = 360, 150
COLORS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d")
STYLE = """
body{margin:12px;width:1120px;background:#f4f5f7;font:13px sans-serif;display:flex;flex-wrap:wrap;gap:10px}
section{background:#fff;border:1px solid #ddd;border-radius:4px;padding:8px;width:346px}
h2{font-size:13px;margin:0 0 6px}
.stat{width:252px}.stat b{font-size:18px;margin-right:8px}.stat span{margin-right:4px}
svg{width:100%;display:block}text{font:10px sans-serif;fill:#666}
span{margin-right:10px;white-space:nowrap;font-size:11px}"""


def number(value):
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def stat(series):
    return " ".join(f"<span>{html.escape(label)}</span><b>{number(points[-1][1])}</b>"
                   for label, points in series.items())


def chart(series):
    times = [time for points in series.values() for time, _ in points]
    values = [value for points in series.values() for _, value in points]
    begin, span = min(times), max(max(times) - min(times), 1)
    low, high = min(0, *values), max(*values, 1e-9)

    def place(time, value):
        x = 30 + (time - begin) / span * (WIDTH - 34)
        return f"{x:.1f},{4 + (high - value) / (high - low) * (HEIGHT - 20):.1f}"

    lines = "".join(f'<polyline fill="none" stroke="{color}" stroke-width="1.6" '
                    f'points="{" ".join(place(*point) for point in points)}"/>'
                    for color, points in zip(COLORS * 9, series.values()))
    names = " ".join(f'<span style="color:{color}">{html.escape(label)}</span>'
                    for color, label in zip(COLORS * 9, series))
    return (f'<svg viewBox="0 0 {WIDTH} {HEIGHT}"><path d="M30 4V{HEIGHT - 16}H{WIDTH}" stroke="#ccc" fill="none"/>'
            f'<text x="0" y="12">{number(high)}</text><text x="0" y="{HEIGHT - 16}">{number(low)}</text>'
            f'<text x="30" y="{HEIGHT - 4}">0 s</text><text x="{WIDTH - 30}" y="{HEIGHT - 4}">{span:.0f} s</text>'
            f"{lines}</svg>{names}")


def page_of(panels):
    drawn = [f'<section class="{kind}"><h2>{html.escape(title)}</h2>{(stat if kind == "stat" else chart)(series)}'
             "</section>" for title, kind, series in panels if series]
    return f"<!DOCTYPE html><meta charset=utf-8><title>Lockstep</title><style>{STYLE}</style>{''.join(drawn)}"
