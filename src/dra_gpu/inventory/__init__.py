"""What a GPU is and how the scheduler sees it: names, views, counters, attributes, order, slice layout. Pure."""
