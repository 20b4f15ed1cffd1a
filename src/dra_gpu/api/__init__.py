"""Wire types by API version. Pure: they import nothing of ours, do no I/O, and say what a field means."""
