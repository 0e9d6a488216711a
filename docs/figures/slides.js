const all = [...document.querySelectorAll("section")];
const place = document.getElementById("place");
let at = 0;

function go(number) {
  at = Math.min(Math.max(number, 0), all.length - 1);
  all.forEach((slide, other) => slide.classList.toggle("on", other === at));
  all[at].style.fontSize = "";
  for (let size = 3.3; all[at].scrollHeight > innerHeight + 1 && size > 1.2; size -= 0.1) {
    all[at].style.fontSize = size + "vmin"; // a long slide gets smaller type
  }
  place.textContent = `${at + 1} / ${all.length} · ← → Home End, F full screen, P print`;
  history.replaceState(null, "", "#" + (at + 1));
}

const steps = { ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, Enter: 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1 };
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in steps) go(at + steps[event.key]);
  else if (event.key === "Home") go(0);
  else if (event.key === "End") go(all.length - 1);
  else if (event.key === "f") document.documentElement.requestFullscreen();
  else if (event.key === "p") print();
  else return;
  event.preventDefault();
});
addEventListener("click", (event) => go(at + (event.clientX < innerWidth / 4 ? -1 : 1)));
addEventListener("resize", () => go(at));
go((parseInt(location.hash.slice(1)) || 1) - 1);
