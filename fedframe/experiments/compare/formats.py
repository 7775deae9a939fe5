"""The tables as Markdown, LaTeX and HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from importlib.resources import files

from fedframe.experiments.compare.blocks import DASH, Block
from fedframe.experiments.compare.document import TITLE, Document

NUMBER = re.compile(r"[-+<\[\d]")  # how a number, an interval or a small p-value begins
MINUS = re.compile(r"(?<![\w-])-(?=\d)")  # in front of a number; LaTeX prints a hyphen unless it is told
LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "[": "{[}",  # a bracket right after a line's end would be its option
    "]": "{]}",
    "–": "--",  # noqa: RUF001
    "±": r"\ensuremath{\pm}",
}


def markdown(text: Document) -> str:
    """Tables with headings, each chapter's sentences below them."""
    lines = [f"# {TITLE}", "", f"`{text.command}`", ""]
    for chapter in text.chapters:
        depth = "###" if chapter.heading else "##"
        lines += [f"## {chapter.heading}", ""] if chapter.heading else []
        for block in chapter.blocks:
            lines += [f"{depth} {block.title}", "", markdown_row(block.columns), "|---" * len(block.columns) + "|"]
            lines += [*map(markdown_row, block.rows), ""]
        lines += [*(f"- {note}" for note in chapter.notes), ""]
    return "\n".join(lines)


def markdown_row(cells: tuple[str, ...]) -> str:
    """A line of a table; a bar in a name would end its cell."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def latex(text: Document) -> str:
    """A table environment per table; the sentences follow as comments."""
    lines = [rf"% {TITLE}. Needs \usepackage{{booktabs}}.", f"% {one_line(text.command)}"]
    for chapter in text.chapters:
        for block in chapter.blocks:
            lines += latex_table(block, f"{chapter.heading}: " if chapter.heading else "")
        lines += [f"% {one_line(note)}" for note in chapter.notes]
    return "\n".join(lines) + "\n"


def latex_table(block: Block, where: str = "") -> list[str]:
    """One table: text on the left, numbers behind it."""
    return [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_text(where + block.title)}}}",
        rf"\begin{{tabular}}{{{'l' * len(block.columns)}}}",
        r"\toprule",
        latex_row(block.columns),
        r"\midrule",
        *map(latex_row, block.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def latex_row(cells: tuple[str, ...]) -> str:
    """A line of a table."""
    return " & ".join(map(latex_text, cells)) + r" \\"


def latex_text(text: str) -> str:
    """Text as LaTeX prints it, whatever characters are in it."""
    return MINUS.sub(r"\\ensuremath{-}", "".join(LATEX.get(sign, sign) for sign in one_line(text)))


def one_line(text: str) -> str:
    """Text without line breaks: one would end a comment or a row."""
    return " ".join(text.split())


def page(text: Document) -> str:
    """A page that needs nothing else: tables that scroll on a narrow screen, light and dark."""
    style = (files(__package__) / "page.css").read_text()
    words = " ".join(
        f"<span>{html.escape(word)}</span>" for word in text.command.split(" ")
    )  # lines break between them
    body = [f"<h1>{TITLE}</h1>", f"<pre>{words}</pre>"]
    for chapter in text.chapters:
        depth = 3 if chapter.heading else 2
        body += [f"<h2>{html.escape(chapter.heading)}</h2>"] if chapter.heading else []
        body += [html_table(block, depth) for block in chapter.blocks]
        body += [f"<h{depth}>How to read it</h{depth}>"] if chapter.notes else []
        body += ["<ul>", *(f"<li>{html.escape(note)}</li>" for note in chapter.notes), "</ul>"]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{TITLE}: {html.escape(text.command)}</title>"
    )
    return f'<!doctype html>\n<html lang="en">\n<head>{head}\n<style>\n{style}</style></head>\n<body>\n' + "\n".join(
        [*body, "</body>", "</html>\n"]
    )


def html_table(block: Block, depth: int = 2) -> str:
    """One table with its heading; the first cell of a line says what it is about, and numbers stand on the right."""
    kinds = [kind(row[i] for row in block.rows) for i in range(len(block.columns))]
    head = "".join(f'<th scope="col"{k}>{html.escape(name)}</th>' for name, k in zip(block.columns, kinds, strict=True))
    rows = "\n".join(
        f'<tr><th scope="row">{html.escape(row[0])}</th>'
        + "".join(f"<td{k}>{html.escape(cell)}</td>" for cell, k in zip(row[1:], kinds[1:], strict=True))
        + "</tr>"
        for row in block.rows
    )
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"
    name = html.escape(block.title)
    return (
        f'<h{depth}>{name}</h{depth}>\n<div class="table" tabindex="0" role="region" aria-label="{name}">{table}</div>'
    )


def kind(cells: Iterable[str]) -> str:
    """The class of a column of numbers; of any other none."""
    known = [cell for cell in cells if cell not in ("", DASH)]
    return ' class="number"' if known and all(NUMBER.match(cell) for cell in known) else ""
