"""A parser of pages for tests."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Checks that tags nest and collects texts, identifiers and addresses."""

    VOID = ("meta", "img")

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.ids, self.links = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href"):
                self.links.append(value)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
