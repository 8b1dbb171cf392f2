"""A run as a page: how each part of its prompts came about, the tree of its branches, where the time went, the bill.

The page is one file, holds all it needs and loads nothing. What a program or a model wrote is only ever text in it.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from banyan.runtime.errors import ConfigError
from banyan.runtime.protocol import wire
from banyan.views import svg
from banyan.views.history import BranchHistory, GenHistory, History, usage_of
from banyan.views.prompt_spans import Stroke, strokes
from banyan.views.timeline import phases

HERE = Path(__file__).parent
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
MEANINGS = {
    "cached": "prompt, found in the tree",
    "computed": "prompt, computed",
    "generated": "generated",
    "drafted": "generated, from a draft: proposed before it was computed",
    "chosen": "chosen from given texts",
    "given": "text that no gen has read",
}


class Page:
    """A page of HTML, complete in itself. In a notebook it shows itself. html: its source."""

    def __init__(self, html: str, title: str) -> None:
        self.html, self.title = html, title

    def __repr__(self) -> str:
        return f"<Page {self.title!r}, {len(self.html)} characters; save it with .save(path)>"

    def _repr_html_(self) -> str:
        style = "width:100%;height:720px;border:0;border-radius:12px"
        return f'<iframe srcdoc="{escape(self.html)}" style="{style}" sandbox="allow-scripts"></iframe>'

    def save(self, path: str | Path) -> Path:
        """Write it to `path`; gives the path. ConfigError: that cannot be written."""
        try:
            Path(path).write_text(self.html, encoding="utf-8")
        except OSError as e:
            raise ConfigError(f"the page cannot be written: {e}") from e
        return Path(path)


def page(history: History, looks: dict[int, wire.Value]) -> Page:
    """looks: by branch, what a Read with tokens gave; branches that have none are shown as the language knows them."""
    painted = {branch.number: strokes(branch, looks.get(branch.number)) for branch in history.branches}
    title = f"{history.name} on {history.model}"
    body = [
        _tiles(history),
        card("Branches", svg.tree(history, painted)) if len(history.branches) > 1 else "",
        _prompts(history, painted),
        card("Time", svg.time(history)),
        card("Gens", _table(history.gens)) if history.gens else "",
    ]
    return document(title, history.name, history.model, body)


def document(title: str, name: str, note: str, body: list[str]) -> Page:
    """A page of cards and tiles, under a name with a note beside it."""
    header = (
        f'<header><h1>{escape(name)}</h1><small>{escape(note)}</small><button id="theme">light / dark</button></header>'
    )
    css, js = (HERE.joinpath(name).read_text(encoding="utf-8") for name in ("run_page.css", "run_page.js"))
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{css}</style></head>"
        f"<body><main>{header}{''.join(body)}</main><script>{js}</script></body></html>"
    )
    return Page(html, title)


def card(title: str, inside: str) -> str:
    return f'<section class="card"><h2>{title}</h2>{inside}</section>' if inside else ""


def _by_drafter(history: History) -> str:
    """Such as ": tree 90 of 100", of all gens."""
    sums: dict[str, list[int]] = {}
    for gen in history.gens:
        for sample in gen.value.samples if gen.value is not None else ():
            for name, (n_drafted, n_accepted) in sample.drafts.items():
                of = sums.setdefault(name, [0, 0])
                of[0], of[1] = of[0] + n_accepted, of[1] + n_drafted
    told = ", ".join(f"{name} {right:,} of {n:,}" for name, (right, n) in sums.items())
    return f": {told}" if told else ""


def _tiles(history: History) -> str:
    usage, gens, trace = usage_of(history.gens), history.gens, history.trace
    ends = [gen.value.times.ended for gen in gens if gen.value is not None]
    tiles = [
        (f"{len(gens)}", "gens" if len(gens) != 1 else "gen"),
        (f"{len(trace.sent)}", "messages sent" if len(trace.sent) != 1 else "message sent"),
    ]
    if len(history.branches) > 1:
        tiles.insert(1, (f"{len(history.branches)}", "branches"))
    if usage.prompt:
        tiles += [
            (f"{usage.prompt:,}", "prompt tokens"),
            (f"{usage.hit_rate:.0%}", "of them cached"),
        ]
    if usage.generated:
        tiles.append((f"{usage.generated:,}", "tokens generated"))
    if usage.drafted:
        tiles.append((f"{usage.accepted / usage.drafted:.0%}", f"of drafts accepted{_by_drafter(history)}"))
    if ends and max(ends) > trace.began:
        tiles.append((duration(max(ends) - trace.began), "from start to end"))
    return row_of_tiles(tiles)


def row_of_tiles(tiles: list[tuple[str, str]]) -> str:
    """Figures, each with what it is."""
    inside = "".join(f'<div class="tile"><b>{b}</b><span>{t}</span></div>' for b, t in tiles)
    return f'<div class="tiles">{inside}</div>'


def duration(seconds: float) -> str:
    """A time span in a few characters."""
    if seconds < 0.0995:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e3:.0f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


# ---- prompts -------------------------------------------------------------------------------------------------------


def _prompts(history: History, painted: dict[int, list[Stroke]]) -> str:
    used = {stroke.how for one in painted.values() for stroke in one if stroke.text}
    key = "".join(f'<span class="{how}"><i></i>{meaning}</span>' for how, meaning in MEANINGS.items() if how in used)
    if any(_is_constrained(stroke) for one in painted.values() for stroke in one):
        key += '<span class="generated constrained"><i></i>held to a constraint</span>'
    has_tokens = any(len(stroke.tokens) > 1 for one in painted.values() for stroke in one)
    box = '<label><input type="checkbox" id="tokens"> tokens</label>' if has_tokens else ""
    sections = "".join(_branch(branch, painted[branch.number], branch is history.root) for branch in history.branches)
    return f'<section class="card">{box}<h2>Prompt</h2><div class="key">{key}</div>{sections}</section>'


def _branch(branch: BranchHistory, painted: list[Stroke], is_on: bool) -> str:
    head = ""
    if branch.parent is not None:
        head = f"<p>branch {branch.number}, forked from {branch.parent.number}; what they share is pale</p>"
    shown, seen = [], set[int]()
    for stroke in painted:
        shown.append(_stroke(stroke, seen))
    on = " on" if is_on else ""
    return f'<div class="branch{on}" data-branch="{branch.number}">{head}<pre>{"".join(shown)}</pre></div>'


def _stroke(stroke: Stroke, seen: set[int]) -> str:
    """seen: refs of gens whose name was shown already."""
    gen, shared = stroke.item.gen, " shared" if stroke.is_shared else ""
    own = gen is not None and stroke.item.is_made
    if gen is not None and own and gen.value is None:
        if gen.error is not None:
            return f'<em class="bad{shared}">{escape(gen.label)} failed: {escape(_first_line(gen.error))}</em>'
        return f'<em class="generated{shared}">{escape(gen.label)} is under way</em>'
    if not stroke.text:
        return ""
    tag = ""
    if gen is not None and own and gen.op.ref not in seen:
        seen.add(gen.op.ref)
        tag = f"<b>{escape(gen.label)}</b>"
    classes = f"{stroke.how}{' marker' if stroke.is_marker else ''}{shared}"
    classes += " constrained" if _is_constrained(stroke) else ""
    tokens = "".join(f"<i>{escape(token)}</i>" for token in stroke.tokens) if len(stroke.tokens) > 1 else ""
    return f'<span class="{classes}" title="{escape(_title(stroke))}">{tag}{tokens or escape(stroke.text)}</span>'


def _is_constrained(stroke: Stroke) -> bool:
    return bool(stroke.item.gen is not None and stroke.item.is_made and stroke.item.gen.constraint)


def _title(stroke: Stroke) -> str:
    n = len(stroke.tokens)
    what = {"joined": "joined from a branch, ", "spliced": "a value spliced in, "}.get(stroke.item.kind, "")
    gen = stroke.item.gen
    if gen is not None and stroke.item.is_made:
        what = f"{gen.label}, {gen.op.line}, " + (f"must be {gen.constraint}, " if gen.constraint else "")
    return f"{what}{MEANINGS[stroke.how]}" + (f", {n} tokens" if n > 1 else "")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


# ---- the table -----------------------------------------------------------------------------------------------------


def _table(gens: list[GenHistory]) -> str:
    usage = usage_of(gens)
    drafts = ("drafted", "accepted") if usage.drafted else ()
    heads = ["gen", "line", "branch", "cached", "prompt", "computed", "generated", *drafts]
    heads += ["queue", "prefill", "decode", "tokens/s", "ended"]
    rows = "".join(_row(gen, drafts) for gen in gens)
    totals = [
        f"{usage.prompt:,}",
        f"{usage.computed:,}",
        f"{usage.generated:,}",
        *(f"{getattr(usage, n):,}" for n in drafts),
    ]
    foot = f"<td>all</td><td></td><td></td><td>{_bar(usage.prompt, usage.cached)}</td>"
    foot += "".join(f"<td>{total}</td>" for total in totals) + "<td></td>" * 5
    head = "".join(f"<th{' class=left' if name == 'line' else ''}>{name}</th>" for name in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody><tfoot><tr>{foot}</tr></tfoot></table>"


def _row(gen: GenHistory, drafts: tuple[str, ...]) -> str:
    start = f'<td>{escape(gen.label)}</td><td class="left">{escape(gen.op.line)}</td><td>{gen.op.state}</td>'
    if gen.value is None:
        said = "under way" if gen.error is None else escape(_first_line(gen.error))
        return f'<tr>{start}<td colspan="{9 + len(drafts)}" class="left error">{said}</td></tr>'
    usage, times, sample = gen.value.usage, gen.value.times, gen.value.samples[0]
    spans = {what: end - begin for what, begin, end in phases(times)}
    speed = f"{gen.tokens_per_second:,.0f}" if gen.tokens_per_second else ""
    ended = str(sample.finish_reason) if isinstance(gen.op, wire.Gen) else "chosen"
    cells = [
        _bar(usage.prompt, usage.cached),
        f"{usage.prompt:,}",
        f"{usage.prompt - usage.cached:,}",
        f"{usage.generated:,}",
        *(f"{getattr(usage, name):,}" for name in drafts),
        *(duration(spans[what]) if what in spans else "" for what in ("queue", "prefill", "decode")),
        speed,
        ended,
    ]
    return f"<tr>{start}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _bar(prompt: int, cached: int) -> str:
    share = 100 * cached / prompt if prompt else 0
    title = f"{cached} of {prompt} tokens cached"
    return f'{cached:,} <span class="bar" title="{title}"><i style="width:{share:.1f}%"></i></span>' if prompt else "0"
