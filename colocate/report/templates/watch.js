// Takes what `colocate watch` sends: the strip as it is, and word of a new report, which is fetched.
"use strict";

const strip = document.getElementById("strip");
const report = document.getElementById("report");
let shown = []; // the report's blocks as they came, to tell which have changed
let drawing = Promise.resolve();

async function draw() {
  const answer = await fetch("/report");
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const blocks = [...page.body.children].map((block) => document.importNode(block, true));
  const told = blocks.map((block) => block.outerHTML);
  // Pictures have their height before they are put in place, so that nothing jumps.
  const images = blocks.flatMap((block) => [...block.querySelectorAll("img")]);
  await Promise.all(images.map((image) => image.decode().catch(() => undefined)));
  if (document.title !== page.title) document.title = page.title;
  const old = [...report.children];
  if (told.length !== shown.length) {
    const open = openNames();
    report.replaceChildren(...blocks);
    reopen(report, open);
  } else {
    blocks.forEach((block, index) => {
      if (told[index] === shown[index]) return;
      const wasOpen = old[index].tagName === "DETAILS" && old[index].open;
      const left = old[index].scrollLeft;
      old[index].replaceWith(block);
      if (wasOpen) block.open = true;
      block.scrollLeft = left;
    });
  }
  shown = told;
  report.dataset.revision = answer.headers.get("X-Revision");
}

function openNames() {
  return new Set([...report.querySelectorAll("details[open] > summary")].map(nameOf));
}

function reopen(parent, names) {
  for (const summary of parent.querySelectorAll("details > summary")) {
    if (names.has(nameOf(summary))) summary.parentElement.open = true;
  }
}

// "All 14 swaps" is "All 15 swaps" a moment later.
function nameOf(summary) {
  return summary.textContent.replace(/\d+/g, "");
}

const events = new EventSource("/events");
events.addEventListener("strip", (event) => { strip.innerHTML = JSON.parse(event.data); });
events.addEventListener("report", () => { drawing = drawing.then(draw, draw); });
events.addEventListener("end", () => { events.close(); lost("`colocate watch` has ended; this is what it showed last."); });
events.addEventListener("error", () => {
  if (events.readyState === EventSource.CLOSED) lost("The connection to `colocate watch` is lost.");
});

function lost(text) {
  const note = document.createElement("div");
  note.className = "warning";
  note.textContent = text;
  strip.append(note);
}
