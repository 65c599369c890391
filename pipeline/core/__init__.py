"""What every room stands on: files, locks, processes, conversations, redaction, the audit chain."""
