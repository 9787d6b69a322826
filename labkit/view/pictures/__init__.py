"""The pictures, one module each (charts share one): data in, shapes and a description out."""
