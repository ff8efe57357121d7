"""The values that pass from one step of the compiler to the next: frozen, printable, comparable."""
