"""Where traces come from: one small file for each format, behind one protocol (`protocol`), chosen by `open`."""
