"""The pictures, a module each (charts have one): what it accepts, where everything stands, what it says in words."""
