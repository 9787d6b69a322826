"""Pictures of plans and traces, as SVG."""
