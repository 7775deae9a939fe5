"""The tables as Markdown, LaTeX and HTML."""

from __future__ import annotations

import html
from importlib.resources import files

from fedframe.comparing.blocks import TITLE, Block, blocks
from fedframe.comparing.notes import notes
from fedframe.comparing.result import Comparison

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
}


def markdown(comparison: Comparison) -> str:
    """Tables with headings, then the sentences."""
    lines = [f"# {TITLE}", "", f"`{comparison.command}`", ""]
    for block in blocks(comparison):
        lines += [f"## {block.title}", "", markdown_row(block.columns), "|---" * len(block.columns) + "|"]
        lines += [*map(markdown_row, block.rows), ""]
    return "\n".join([*lines, *(f"- {text}" for text in notes(comparison))]) + "\n"


def markdown_row(cells: tuple[str, ...]) -> str:
    """A line of a table; a bar in a name would end its cell."""
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def latex(comparison: Comparison) -> str:
    """A table environment per table; the sentences follow as comments."""
    lines = [rf"% {TITLE}. Needs \usepackage{{booktabs}}.", f"% {one_line(comparison.command)}"]
    for block in blocks(comparison):
        lines += latex_table(block)
    return "\n".join([*lines, *(f"% {one_line(text)}" for text in notes(comparison))]) + "\n"


def latex_table(block: Block) -> list[str]:
    """One table: text on the left, numbers behind it."""
    return [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_text(block.title)}}}",
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
    return "".join(LATEX.get(sign, sign) for sign in one_line(text))


def one_line(text: str) -> str:
    """Text without line breaks: one would end a comment or a row."""
    return " ".join(text.split())


def page(comparison: Comparison) -> str:
    """A page that needs nothing else: tables that scroll on a narrow screen, light and dark."""
    style = (files(__package__) / "page.css").read_text()
    body = [f"<h1>{TITLE}</h1>", f"<p><code>{html.escape(comparison.command)}</code></p>"]
    body += [html_table(block) for block in blocks(comparison)]
    body += ["<ul>", *(f"<li>{html.escape(text)}</li>" for text in notes(comparison)), "</ul>"]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{TITLE}</title>'
    return f'<!doctype html>\n<html lang="en">\n<head>{head}\n<style>\n{style}</style></head>\n<body>\n' + "\n".join(
        [*body, "</body>", "</html>\n"]
    )


def html_table(block: Block) -> str:
    """One table with its heading."""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in block.columns)
    rows = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in block.rows)
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"
    return f"<h2>{html.escape(block.title)}</h2>\n<div>{table}</div>"
