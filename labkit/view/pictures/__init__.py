"""The pictures, a module each: what it accepts, where everything stands, what it says in words."""
