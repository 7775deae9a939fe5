"""Tables and notes as Markdown, LaTeX, HTML, CSV and on a terminal: one writer for comparisons and papers' tables."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

DASH = "–"  # noqa: RUF001
NUMBER = re.compile(r"[-+<\[\d]")  # how a number, an interval or a small p-value begins
MINUS = re.compile(r"(?<![\w-])-(?=\d)")  # in front of a number, where LaTeX would print a hyphen
LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "[": "{[}",  # a bracket right after a line's end would be read as its option
    "]": "{]}",
    DASH: "--",
    "±": r"\ensuremath{\pm}",
}


@dataclass(frozen=True)
class Table:
    """A table of texts: its title, its column names and its rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    keys: int = 1  # how many leading columns say what a row is about
    bold: frozenset[tuple[int, int]] = frozenset()  # cells by row and column that LaTeX prints in bold


@dataclass(frozen=True)
class Chapter:
    """Tables and notes under a heading; an only chapter has none."""

    heading: str
    tables: Sequence[Table]
    notes: Sequence[str]


@dataclass(frozen=True)
class Document:
    """A title, the line below it (the command if `is_command`, else a sentence) and the chapters."""

    title: str
    lead: str
    chapters: Sequence[Chapter]
    is_command: bool = True


# -- Markdown ----------------------------------------------------------------------------------------------------------
def markdown(document: Document) -> str:
    """The document as Markdown: tables with headings, each chapter's notes below them."""
    lead = f"`{document.lead}`" if document.is_command else document.lead
    lines = [f"# {document.title}", "", lead, ""]
    for chapter in document.chapters:
        depth = "###" if chapter.heading else "##"
        lines += [f"## {chapter.heading}", ""] if chapter.heading else []
        for table in chapter.tables:
            lines += [f"{depth} {table.title}", "", markdown_row(table.columns), "|---" * len(table.columns) + "|"]
            lines += [*map(markdown_row, table.rows), ""]
        lines += [*(f"- {note}" for note in chapter.notes), ""]
    return "\n".join(lines)


def markdown_row(cells: Sequence[str]) -> str:
    """A row of a table; a bar inside a cell is escaped, because it would end the cell."""
    texts = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
    return "|" + "|".join(f" {text} " if text else " " for text in texts) + "|"


# -- LaTeX -------------------------------------------------------------------------------------------------------------
def latex(document: Document) -> str:
    """The document as LaTeX: a table environment per table, the notes as comments."""
    lines = [rf"% {one_line(document.title)}. Needs \usepackage{{booktabs}}.", f"% {one_line(document.lead)}"]
    for chapter in document.chapters:
        for table in chapter.tables:
            lines += latex_table(table, f"{chapter.heading}: " if chapter.heading else "")
        lines += [f"% {one_line(note)}" for note in chapter.notes]
    return "\n".join(lines) + "\n"


def latex_table(table: Table, where: str) -> list[str]:
    """One table environment; `where` precedes the caption."""
    return [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_text(where + table.title)}}}",
        rf"\begin{{tabular}}{{{'l' * len(table.columns)}}}",
        r"\toprule",
        latex_row(table.columns),
        r"\midrule",
        *(latex_row(cells, {column for at, column in table.bold if at == row}) for row, cells in enumerate(table.rows)),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def latex_row(cells: Sequence[str], bold: Collection[int] = ()) -> str:
    """A row of a table, with the cells of some columns in bold."""
    texts = [latex_text(cell) for cell in cells]
    return " & ".join(rf"\textbf{{{text}}}" if at in bold else text for at, text in enumerate(texts)) + r" \\"


def latex_text(text: str) -> str:
    """Text as LaTeX prints it, whatever characters are in it."""
    return MINUS.sub(r"\\ensuremath{-}", "".join(LATEX.get(sign, sign) for sign in one_line(text)))


def one_line(text: str) -> str:
    """Text without line breaks: one would end a comment or a row."""
    return " ".join(text.split())


# -- HTML --------------------------------------------------------------------------------------------------------------
def page(document: Document) -> str:
    """The document as an HTML page that needs no other file: tables that scroll on a narrow screen, light and dark."""
    style = (files(__package__) / "tables.css").read_text()
    words = " ".join(f"<span>{html.escape(word)}</span>" for word in document.lead.split(" "))  # lines break in between
    body = [f"<h1>{html.escape(document.title)}</h1>", f"<pre>{words}</pre>"]
    for chapter in document.chapters:
        depth = 3 if chapter.heading else 2
        body += [f"<h2>{html.escape(chapter.heading)}</h2>"] if chapter.heading else []
        body += [html_table(table, depth) for table in chapter.tables]
        body += [f"<h{depth}>How to read it</h{depth}>"] if chapter.notes else []
        body += ["<ul>", *(f"<li>{html.escape(note)}</li>" for note in chapter.notes), "</ul>"]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(f'{document.title}: {document.lead}')}</title>"
    )
    return f'<!doctype html>\n<html lang="en">\n<head>{head}\n<style>\n{style}</style></head>\n<body>\n' + "\n".join(
        [*body, "</body>", "</html>\n"]
    )


def html_table(table: Table, depth: int = 2) -> str:
    """One table with its heading; the first cell of a row is its header, and numbers are aligned on the right."""
    kinds = [column_class(row[i] for row in table.rows) for i in range(len(table.columns))]
    head = "".join(f'<th scope="col"{k}>{html.escape(name)}</th>' for name, k in zip(table.columns, kinds, strict=True))
    rows = "\n".join(
        f'<tr><th scope="row">{html.escape(row[0])}</th>'
        + "".join(f"<td{k}>{html.escape(cell)}</td>" for cell, k in zip(row[1:], kinds[1:], strict=True))
        + "</tr>"
        for row in table.rows
    )
    content = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"
    name = html.escape(table.title)
    scrolling = f'<div class="table" tabindex="0" role="region" aria-label="{name}">{content}</div>'
    return f"<h{depth}>{name}</h{depth}>\n{scrolling}"


def column_class(cells: Iterable[str]) -> str:
    """The HTML class of a column of numbers; empty for any other column."""
    known = [cell for cell in cells if cell not in ("", DASH)]
    return ' class="number"' if known and all(NUMBER.match(cell) for cell in known) else ""


# -- CSV ---------------------------------------------------------------------------------------------------------------
def comma_separated(lines: Iterable[dict[str, Any]]) -> str:
    """Lines with the same keys as CSV; None is an empty field."""
    text = io.StringIO()
    rows = list(lines)
    writer = csv.DictWriter(text, [*rows[0]] if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# -- terminal ----------------------------------------------------------------------------------------------------------
def show(document: Document) -> None:
    """Print the tables: on a terminal in columns that fit its width, elsewhere as Markdown."""
    from rich import table as rich_table
    from rich.console import Console
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        print(markdown(document), end="")
        return
    for chapter in document.chapters:
        if chapter.heading:
            console.rule(Text(chapter.heading), align="left")
        for table in chapter.tables:
            for shown in column_groups(table, console.width):
                grid = rich_table.Table(title=Text(table.title), title_justify="left", box=None, padding=(0, 2, 0, 0))
                for i in shown:
                    grid.add_column(Text(table.columns[i]), no_wrap=i < table.keys)
                for row in table.rows:
                    grid.add_row(*(Text(row[i]) for i in shown))
                console.print(grid)
                console.print()
        for note in chapter.notes:
            console.print(note, markup=False, highlight=False)


def column_groups(table: Table, width: int) -> list[list[int]]:
    """The columns in groups that fit the width, each behind the key columns."""
    widths = [2 + max(map(len, texts)) for texts in zip(table.columns, *table.rows, strict=True)]
    keys = [*range(table.keys)]
    free = width - sum(widths[: table.keys])
    groups: list[list[int]] = [[]]
    left = free
    for i in range(table.keys, len(widths)):
        if groups[-1] and widths[i] > left:
            groups.append([])
            left = free
        groups[-1].append(i)
        left -= widths[i]
    return [keys + group for group in groups]
