"""A run as an HTML page: the origin of each part of its prompts, the tree of branches, a timeline and a table of gens.

The page is one file without external resources. Text of a program or a model is always escaped.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from banyan.runtime.errors import ConfigError
from banyan.runtime.protocol import wire
from banyan.tools.toolbox import ToolCall
from banyan.views import svg
from banyan.views.history import BranchHistory, GenHistory, History, usage_of
from banyan.views.prompt_spans import PromptSpan, prompt_spans
from banyan.views.timeline import phases

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
MEANINGS = {
    "cached": "prompt, in the tree when a gen first read it",
    "computed": "prompt, computed by the gen that first read it",
    "generated": "generated",
    "drafted": "generated, proposed by a drafter",
    "chosen": "chosen by a select",
    "given": "text that no gen has read",
}

MAX_SHARED = 40
"""How many inherited pieces of its prompt a branch shows. With all of them, n branches that are nested or adopted one
after the other would have n * n."""


class Page:
    """An HTML page, which a notebook displays. html: the source of the page."""

    def __init__(self, html: str, title: str) -> None:
        self.html, self.title = html, title

    def __repr__(self) -> str:
        return f"<Page {self.title!r}, {len(self.html)} characters; save it with .save(path)>"

    def _repr_html_(self) -> str:
        style = "width:100%;height:720px;border:0;border-radius:12px"
        return f'<iframe srcdoc="{escape(self.html)}" style="{style}" sandbox="allow-scripts"></iframe>'

    def save(self, path: str | Path) -> Path:
        """Write the page to the file `path`; returns the path. ConfigError: the file cannot be written."""
        try:
            Path(path).write_text(self.html, encoding="utf-8")
        except OSError as e:
            raise ConfigError(f"the page cannot be written: {e}") from e
        return Path(path)


def page(history: History, reads: dict[int, wire.Value]) -> Page:
    """The page of a run. reads: number of a branch -> its tokens, from the server. Other branches are shown as text."""
    spans = {
        branch.number: prompt_spans(branch, reads.get(branch.number), None if branch is history.root else MAX_SHARED)
        for branch in history.branches
    }
    body = [
        _run_tiles(history),
        card("Branches", svg.tree(history, spans)) if len(history.branches) > 1 else "",
        _prompts(history, spans),
        card("Time", svg.time(history)),
        card("Gens", _table(history.gens)) if history.gens else "",
    ]
    return document(f"{history.name} on {history.model}", history.name, history.model, body)


def document(title: str, name: str, note: str, body: list[str]) -> Page:
    """A page with the heading `name`, a `note` beside the heading, and the HTML elements `body` below it."""
    header = (
        f'<header><h1>{escape(name)}</h1><small>{escape(note)}</small><button id="theme">light / dark</button></header>'
    )
    css, js = (Path(__file__).with_suffix(kind).read_text(encoding="utf-8") for kind in (".css", ".js"))
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


def tiles(figures: list[tuple[str, str]]) -> str:
    """The HTML of a row of boxes. Each box shows a figure and its meaning."""
    inside = "".join(f'<div class="tile"><b>{figure}</b><span>{text}</span></div>' for figure, text in figures)
    return f'<div class="tiles">{inside}</div>'


def _run_tiles(history: History) -> str:
    usage, gens, trace = usage_of(history.gens), history.gens, history.trace
    figures = [(f"{len(gens)}", "gens" if len(gens) != 1 else "gen")]
    if len(history.branches) > 1:
        figures.append((f"{len(history.branches)}", "branches"))
    figures.append((f"{len(trace.sent)}", "messages sent" if len(trace.sent) != 1 else "message sent"))
    if usage.prompt:
        figures.append((f"{usage.prompt:,}", "prompt tokens" + (", summed over all gens" if len(gens) > 1 else "")))
        figures.append(
            (f"{usage.hit_rate:.0%}", "of them in the tree" + (" when each gen read them" if len(gens) > 1 else ""))
        )
    if usage.generated:
        figures.append((f"{usage.generated:,}", "tokens generated"))
    if usage.drafted:
        figures.append((f"{usage.accepted / usage.drafted:.0%}", f"of drafts accepted{_by_drafter(gens)}"))
    end = max((gen.value.times.ended for gen in gens if gen.value is not None), default=0.0)
    if end > trace.began:
        figures.append((duration(end - trace.began), "from start to end"))
    return tiles(figures)


def _by_drafter(gens: list[GenHistory]) -> str:
    """How many tokens each drafter proposed and how many of them were accepted, as text, such as ": tree 90 of 100"."""
    sums: dict[str, tuple[int, int]] = {}
    for gen in gens:
        for sample in gen.value.samples if gen.value is not None else ():
            for name, (n_drafted, n_accepted) in sample.drafts.items():
                accepted, drafted = sums.get(name, (0, 0))
                sums[name] = accepted + n_accepted, drafted + n_drafted
    text = ", ".join(f"{name} {accepted:,} of {drafted:,}" for name, (accepted, drafted) in sums.items())
    return f": {text}" if text else ""


def duration(seconds: float) -> str:
    """A time span as short text, such as "12.3 ms"."""
    if seconds < 0.0995:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e3:.0f} ms" if seconds < 0.9995 else f"{seconds:.2f} s"


# ---- prompts -------------------------------------------------------------------------------------------------------


def _prompts(history: History, spans: dict[int, list[PromptSpan]]) -> str:
    every = [span for one in spans.values() for span in one]
    used = {span.origin for span in every if span.text}
    key = "".join(f'<span class="{name}"><i></i>{text}</span>' for name, text in MEANINGS.items() if name in used)
    if any(map(_is_constrained, every)):
        key += '<span class="generated constrained"><i></i>constrained</span>'
    has_tokens = any(len(span.tokens) > 1 for span in every)
    box = '<label><input type="checkbox" id="tokens"> tokens</label>' if has_tokens else ""
    sections = "".join(_branch(branch, spans[branch.number], branch is history.root) for branch in history.branches)
    return f'<section class="card">{box}<h2>Prompt</h2><div class="key">{key}</div>{sections}</section>'


def _branch(branch: BranchHistory, spans: list[PromptSpan], is_selected: bool) -> str:
    head = ""
    if branch.parent is not None:
        head = f"<p>branch {branch.number}, forked from {branch.parent.number}; shared text is pale</p>"
        if spans and spans[0].is_left_out:
            left_out, *spans = spans
            head += f"<p>{len(left_out.text):,} more characters of branch {branch.parent.number} stand before this</p>"
    labelled: set[int] = set()
    inside = "".join(_span(span, labelled) for span in spans)
    on = " on" if is_selected else ""
    return f'<div class="branch{on}" data-branch="{branch.number}">{head}<pre>{inside}</pre></div>'


def _span(span: PromptSpan, labelled: set[int]) -> str:
    """The HTML of a span. labelled: the refs of the gens whose names are on the page already. If the span is the first
    output of its gen, it gets the gen's name, and the ref is added to `labelled`."""
    gen, shared = span.item.gen if span.item.is_output else None, " shared" if span.is_shared else ""
    if gen is not None and gen.value is None:
        calls = _calls(gen)
        if gen.error is not None:
            return f'{calls}<em class="bad{shared}">{escape(gen.label)} failed: {escape(_first_line(gen.error))}</em>'
        return f'{calls}<em class="generated{shared}">{escape(gen.label)} is under way</em>'
    if not span.text:
        return ""
    label = ""
    if gen is not None and gen.op.ref not in labelled:
        labelled.add(gen.op.ref)
        label = f"<b>{escape(gen.label)}</b>"
    classes = f"{span.origin}{' marker' if span.is_marker else ''}{shared}"
    classes += " constrained" if _is_constrained(span) else ""
    n = len(span.tokens)
    text = "".join(f"<i>{escape(token)}</i>" for token in span.tokens) if n > 1 else escape(span.text)
    title = {"joined": "joined from a branch, ", "spliced": "a value spliced in, "}.get(span.item.kind, "")
    if gen is not None:
        title = f"{gen.label}, {gen.op.line}, " + (f"constrained to {gen.constraint}, " if gen.constraint else "")
    title += MEANINGS[span.origin] + (f", {n} tokens" if n > 1 else "")
    return f'<span class="{classes}" title="{escape(title)}">{label}{text}</span>'


def _calls(gen: GenHistory) -> str:
    """The HTML of the tool calls of an unfinished gen that have returned so far, one line each."""
    calls = [call for turn in gen.rounds for call in turn.calls]
    return "".join(escape(f"{call.name}({_arguments(call)}): {call.result}\n") for call in calls)


def _arguments(call: ToolCall) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())


def _is_constrained(span: PromptSpan) -> bool:
    return bool(span.item.gen is not None and span.item.is_output and span.item.gen.constraint)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


# ---- the table -----------------------------------------------------------------------------------------------------


def _table(gens: list[GenHistory]) -> str:
    usage = usage_of(gens)
    drafts = ("drafted", "accepted") if usage.drafted else ()
    heads = ["gen", "line", "branch", "cached", "prompt", "computed", "generated", *drafts]
    heads += ["queue", "prefill", "decode", "tokens/s", "ended"]
    rows = "".join(_row(gen, drafts) for gen in gens)
    totals = [f"{getattr(usage, name):,}" for name in ("prompt", "computed", "generated", *drafts)]
    foot = f"<td>all</td><td></td><td></td><td>{_bar(usage.prompt, usage.cached)}</td>"
    foot += "".join(f"<td>{total}</td>" for total in totals) + "<td></td>" * 5
    head = "".join(f"<th{' class=left' if name == 'line' else ''}>{name}</th>" for name in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody><tfoot><tr>{foot}</tr></tfoot></table>"


def _row(gen: GenHistory, drafts: tuple[str, ...]) -> str:
    start = f'<td>{escape(gen.label)}</td><td class="left">{escape(gen.op.line)}</td><td>{gen.op.state}</td>'
    if gen.value is None:
        status = "under way" if gen.error is None else escape(_first_line(gen.error))
        return f'<tr>{start}<td colspan="{9 + len(drafts)}" class="left error">{status}</td></tr>'
    usage, sample = gen.value.usage, gen.value.samples[0]
    seconds = {name: end - begin for name, begin, end in phases(gen.value.times)}
    cells = [
        _bar(usage.prompt, usage.cached),
        f"{usage.prompt:,}",
        f"{usage.prompt - usage.cached:,}",
        f"{usage.generated:,}",
        *(f"{getattr(usage, name):,}" for name in drafts),
        *(duration(seconds[name]) if name in seconds else "" for name in ("queue", "prefill", "decode")),
        f"{gen.tokens_per_second:,.0f}" if gen.tokens_per_second else "",
        str(sample.finish_reason) if isinstance(gen.op, wire.Gen) else "chosen",
    ]
    return f"<tr>{start}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _bar(prompt: int, cached: int) -> str:
    share = 100 * cached / prompt if prompt else 0
    title = f"{cached} of {prompt} tokens cached"
    return f'{cached:,} <span class="bar" title="{title}"><i style="width:{share:.1f}%"></i></span>' if prompt else "0"
