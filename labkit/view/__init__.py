"""Pictures of plans and traces: as SVG in notebooks, as matplotlib Axes from ``draw_…``."""
