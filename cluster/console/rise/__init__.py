"""Why TTFT rose: the slow times, what each part has of them, the cause, and what to do. Pure."""
