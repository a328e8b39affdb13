// What Sphinx and Furo leave out for keyboards and screen readers.
const labelElements = () => {
  for (const box of document.querySelectorAll("pre, .table-wrapper, .cell_output"))
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  for (const caption of document.querySelectorAll("p.caption[role=heading]"))
    caption.setAttribute("aria-level", "2");
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
};
// A column of long text is not squeezed to a word's width: the table scrolls.
const widenText = () => {
  for (const cell of document.querySelectorAll("article :is(td, th)"))
    if (cell.textContent.length > 32) cell.style.minWidth = "9rem";
};
addEventListener("load", widenText);
addEventListener("load", labelElements);
addEventListener("resize", labelElements);

// A page that was opened as a file may not read others, from which search takes excerpts.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
