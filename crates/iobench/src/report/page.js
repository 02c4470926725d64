"use strict";
document.documentElement.classList.add("scripted");

// Switches a server's marks and lines of the table on or off, everywhere in its experiment.
for (const box of document.querySelectorAll("input[data-switch]")) {
  const experiment = box.closest(".experiment");
  const update = () => {
    const marks = experiment.querySelectorAll(`[data-series="${box.dataset.switch}"]`);
    for (const mark of marks) mark.classList.toggle("off", !box.checked);
  };
  box.addEventListener("change", update);
  // Browsers keep the boxes' state over a reload.
  update();
}

// Shows the picture that was drawn for the choices.
for (const chart of document.querySelectorAll(".chart")) {
  const choices = [...chart.querySelectorAll("select[data-choice]")];
  const update = () => {
    const key = choices.map((choice) => choice.value).join("-");
    let found = false;
    for (const view of chart.querySelectorAll(".view")) {
      view.hidden = view.dataset.key !== key;
      found ||= !view.hidden;
    }
    chart.querySelector(".empty").hidden = found;
  };
  for (const choice of choices) choice.addEventListener("change", update);
  update();
}

for (const button of document.querySelectorAll("button[data-download]")) {
  button.addEventListener("click", () => {
    const text = document.getElementById(button.dataset.download).textContent;
    const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = button.dataset.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  });
}
