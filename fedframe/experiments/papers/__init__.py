"""The papers' tables as files: which runs fill a table, at which size, and what came out beside what is printed."""
