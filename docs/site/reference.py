"""The reference: comments of headers -> Doxygen's XML -> one page for each header, which Breathe fills.

Every name in namespace lockstep has to be documented. That is so if it has a comment, if the declaration right above it
has one, if the header's own comment speaks of it by name, or if it is a type with comments on its members.
"""

import hashlib
import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree

import headers

_SETTINGS = {
    "PROJECT_NAME": "Lockstep",
    "GENERATE_HTML": "NO",
    "GENERATE_LATEX": "NO",
    "GENERATE_XML": "YES",
    "XML_PROGRAMLISTING": "NO",
    "FILE_PATTERNS": "*.h",
    "RECURSIVE": "YES",
    "EXTRACT_ALL": "YES",
    "MARKDOWN_SUPPORT": "NO",
    "AUTOLINK_SUPPORT": "YES",
    "MACRO_EXPANSION": "YES",
    "SEARCH_INCLUDES": "NO",
    "PREDEFINED": "TORCH_MODULE(x)=",
    "HIDE_FRIEND_COMPOUNDS": "YES",
    "EXCLUDE_SYMBOLS": "lockstep::internal lockstep::internal::* internal::* lockstep::*_detail lockstep::*_detail::*",
    "WARN_AS_ERROR": "YES",
    "QUIET": "YES",
}


def write_if_changed(path, text):
    """Keeps the time of what is as it was, so that Sphinx reads again only what is new."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return
    except FileNotFoundError:
        pass
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def run_doxygen_on(paths, work):
    """Reads work/headers/<path>; returns the folder of XML."""
    source = os.path.join(work, "headers")
    settings = {**_SETTINGS, "INPUT": " ".join(f'"{os.path.join(source, path)}"' for path in paths),
                "OUTPUT_DIRECTORY": work, "STRIP_FROM_PATH": source, "STRIP_FROM_INC_PATH": source}
    text = "".join(f"{name} = {value}\n" for name, value in settings.items())
    subprocess.run(["doxygen", "-"], input=text, text=True, check=True, cwd=work)
    xml = os.path.join(work, "xml")
    _remove_private(xml)
    return xml


def _parsed(xml, refid):
    return ElementTree.parse(os.path.join(xml, refid + ".xml"))


def _remove_private(xml):
    for name in os.listdir(xml):
        if re.match(r"(class|struct)lockstep", name):
            tree = ElementTree.parse(os.path.join(xml, name))
            compound = tree.getroot().find("compounddef")
            for child in list(compound):
                if child.get("prot") == "private" or child.get("kind", "").startswith("private"):
                    compound.remove(child)
            tree.write(os.path.join(xml, name), encoding="utf-8", xml_declaration=True)


def _make_files_complete(xml):
    """Gives each file's XML the members of namespace lockstep that it declares, so that a page shows no namespace and
    each name with its own; and in the index its whole path, since there are two options.h."""
    sections = {}
    for section in _parsed(xml, "namespacelockstep").getroot().iter("sectiondef"):
        for member in section.iter("memberdef"):
            member.find("name").text = "lockstep::" + member.findtext("name")  # as there is no namespace around it
            value = member.find("initializer")
            if value is not None and len("".join(value.itertext())) > 100:
                member.remove(value)
            own = sections.setdefault(member.find("location").get("file"), {})
            own.setdefault(section.get("kind"), []).append(member)
    index = ElementTree.parse(os.path.join(xml, "index.xml"))
    for entry in index.getroot().iter("compound"):
        if entry.get("kind") != "file":
            continue
        tree = _parsed(xml, entry.get("refid"))
        compound = tree.getroot().find("compounddef")
        path = entry.find("name").text = compound.find("location").get("file")
        for namespace in compound.findall("innernamespace"):
            compound.remove(namespace)
        for inner in compound.findall("innerclass"):
            # A template that is specialised for several constraints has one name here.
            if not inner.text.startswith("lockstep::") or inner.text.endswith("< T >"):
                compound.remove(inner)
        place = list(compound).index(compound.find("briefdescription"))
        for kind, members in sections.get(path, {}).items():
            section = ElementTree.Element("sectiondef", kind=kind)
            section.extend(members)
            compound.insert(place, section)
        tree.write(os.path.join(xml, entry.get("refid") + ".xml"), encoding="utf-8", xml_declaration=True)
    index.write(os.path.join(xml, "index.xml"), encoding="utf-8", xml_declaration=True)


class Name:
    def __init__(self, element, kind, name):
        place = element.find("location")
        self.kind, self.name = kind, re.sub(r"<.*", "", name).strip().split("::")[-1]
        self.path, self.line = place.get("file"), int(place.get("line"))
        parts = [element.find(part) for part in ("briefdescription", "detaileddescription")]
        self.is_described = any("".join(part.itertext()).strip() for part in parts if part is not None)


def public_names(xml):
    """Every name of namespace lockstep that the XML has."""
    names = []
    for file in sorted(os.listdir(xml)):
        if not re.match(r"(class|struct|concept|namespace)lockstep", file):
            continue
        compound = ElementTree.parse(os.path.join(xml, file)).getroot().find("compounddef")
        name = compound.findtext("compoundname")
        if name == "lockstep":
            members = compound.iter("memberdef")
            names += [Name(member, member.get("kind"), member.findtext("name")) for member in members]
        elif name.count("::") == 1:
            names.append(Name(compound, compound.get("kind"), name))
    return names


def _has_comment_above(lines, line):
    """Whether the declaration in this line, or one right above it, has a comment."""
    if "///<" in lines[line - 1]:
        return True
    for above in reversed(lines[: line - 1]):
        if not above.strip() or re.match(r"namespace|#|\}|\S.*\{$", above):
            return False
        if "///" in above:
            return True
    return False


def is_documented(name, text):
    if name.is_described or _has_comment_above(text.split("\n"), name.line):
        return True
    head = text[: text.find("*/")] if text.startswith("/**") else ""
    if re.search(rf"\b{re.escape(name.name)}\b", head):
        return True
    pattern = rf"(?:struct|class|enum class) {re.escape(name.name)}\b[^;]*?\{{(.*?)^\}};"
    body = re.search(pattern, text, re.DOTALL | re.MULTILINE)
    return name.kind in ("struct", "class", "enum") and bool(body) and "///" in body[1]


def page_of(path):
    """lockstep/comm/group/world.h -> reference/comm/group/world"""
    return "reference/" + path.removeprefix("lockstep/").removesuffix(".h")


def _title(text, underline):
    return f"{text}\n{underline * len(text)}\n\n"


def _folder_of(path):
    """lockstep/train/ddp/comm_hooks/comm_hook.h -> train/ddp"""
    holding = [folder for folder in headers.folders() if path.startswith(f"lockstep/{folder}/")]
    return max(holding, key=len)


def pages(texts):
    """The reference's pages, by their places. texts: of the headers as Doxygen reads them, by path."""
    by_folder, made = {}, {}
    for path, text in texts.items():
        by_folder.setdefault(_folder_of(path), []).append(path)
        # Sphinx reads a page again if the page has changed; it does not look at what Breathe reads.
        digest = hashlib.sha256(text.encode()).hexdigest()
        made[page_of(path) + ".rst"] = _title(path, "=") + f".. {digest}\n\n.. doxygenfile:: {path}\n"
    folders = [folder for folder in headers.folders() if folder in by_folder]
    for folder in folders:
        entries = "".join(f"   /{page_of(path)}\n" for path in by_folder[folder])
        made[f"reference/{folder}.rst"] = _title(folder, "=") + ".. toctree::\n   :maxdepth: 1\n\n" + entries
    text = _title("Reference", "=")
    text += "Every name of namespace ``lockstep``, by the header that declares it. ``lockstep/lockstep.h`` includes\n"
    text += "all of them but ``lockstep/train/nn/sync_batch_norm.h``. Folders are in the order of dependencies.\n\n"
    text += ".. toctree::\n   :maxdepth: 2\n\n" + "".join(f"   {folder}\n" for folder in folders)
    made["reference/index.rst"] = text
    return made


def make(work, stage):
    """Writes the pages and returns (the folder of XML, their places, what is not documented)."""
    paths, every = headers.public_headers(), headers.all_headers()
    texts = {path: headers.filtered(path, headers.read(path), every) for path in paths}
    for path, text in texts.items():
        write_if_changed(os.path.join(work, "headers", path), text)
    xml = run_doxygen_on(paths, work)
    missing = [name for name in public_names(xml) if not is_documented(name, texts[name.path])]
    _make_files_complete(xml)
    made = pages(texts)
    for place, text in made.items():
        write_if_changed(os.path.join(stage, place), text)
    return xml, list(made), [f"{name.path}: the {name.kind} {name.name} has no comment" for name in missing]
