"""Words that items are made of."""

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gita", "Hugo", "Ines", "Jon", "Kim", "Lea", "Max", "Nora", "Otto")
CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Delhi", "Quito", "Tokyo", "Bern", "Riga", "Accra", "Hanoi")
COLOURS = ("red", "blue", "green", "white", "black", "yellow", "brown", "grey", "pink", "orange")
THINGS = (
    "lamp",
    "chair",
    "table",
    "bottle",
    "garden",
    "letter",
    "window",
    "basket",
    "bridge",
    "engine",
    "clock",
)
PLACES = ("harbour", "library", "museum", "station", "archive", "bakery", "castle", "market", "theatre", "workshop")
VERBS = ("opened", "closed", "painted", "moved", "found", "sold", "cleaned", "repaired", "carried", "forgot")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
