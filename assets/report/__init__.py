"""Pages for people who run no command: one of each iteration, and one of the whole history of a model.

A page is one HTML file without a script, a server or anything from elsewhere: it opens from disk, in light and dark,
and prints. It holds figures, reasons and digests of records, and no text of a user. `charts` draws, `figures` writes
money and times, `content` says what stands on a page of an iteration, `history` on that of all, `pages` makes the file.
Owns no figure: each is in a record.
"""
