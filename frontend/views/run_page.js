const all = (query) => document.querySelectorAll(query);
function pick(number) {
  for (const one of all(".branch, svg .row")) one.classList.toggle("on", one.dataset.branch === number);
}
for (const row of all("svg .row")) {
  row.addEventListener("click", () => pick(row.dataset.branch));
  row.addEventListener("keydown", (event) => event.key === "Enter" && pick(row.dataset.branch));
}
document.querySelector("#tokens")?.addEventListener("change", (event) => {
  for (const pre of all("pre")) pre.classList.toggle("tokens", event.target.checked);
});
document.querySelector("#theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
