"""Each place that a run writes or asks: tried before anything is paid, by the client that goes there later, by what it
does there. A try leaves nothing behind."""
