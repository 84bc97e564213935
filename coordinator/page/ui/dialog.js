// A question before something is done, which names what it is done to.

import {el, setText, show} from "./dom.js";

let numbers = 0;

// fields: [{name, label, type: "text" | "checkbox"}]. `act(values)` does it; what it throws is
// shown, and the question stays. Resolves to whether it was done.
export function confirmAction({title, text, fields = [], confirm, keep, danger = false, act}) {
  numbers += 1;
  const id = `dialog-${numbers}`;
  const inputs = new Map(fields.map(
      (field) => [field.name, el("input", {type: field.type, id: `${id}-${field.name}`})]));
  const problem = el("p", {class: "problem", role: "alert", hidden: true});
  const yes = el("button", {type: "submit", class: danger ? "danger" : "primary"}, confirm);
  const no = el("button", {type: "button"}, keep);
  const form =
      el("form", {}, el("h2", {id: `${id}-title`}, title), el("p", {}, text),
         ...fields.map((field) => fieldRow(field, inputs.get(field.name))), problem,
         el("div", {class: "buttons"}, yes, no));
  const dialog = el("dialog", {class: "dialog", "aria-labelledby": `${id}-title`}, form);
  document.body.append(dialog);
  return new Promise((resolve) => {
    let done = false;
    no.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(done);
    });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      yes.disabled = true;
      try {
        await act(Object.fromEntries([...inputs].map(
            ([name, input]) => [name, input.type === "checkbox" ? input.checked : input.value])));
        done = true;
        dialog.close();
      } catch (error) {
        setText(problem, error.message);
        show(problem, true);
      }
      yes.disabled = false;
    });
    dialog.showModal();
  });
}

function fieldRow(field, input) {
  const label = el("label", {"for": input.id}, field.label);
  return field.type === "checkbox" ? el("p", {}, input, " ", label) :
                                     el("p", {class: "field"}, label, input);
}
