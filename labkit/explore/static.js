(async () => {
  const script = document.currentScript, box = script.parentNode;
  const {controls, packed} = JSON.parse(script.previousElementSibling.textContent);
  if (!window.DecompressionStream) return;
  const bytes = Uint8Array.from(atob(packed), c => c.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  const [table, rows] = (await new Response(plain).text()).split('\n\n').map(text => text.split('\n'));
  const picture = row => {
    let at = -1;
    return row.split(',').map(number => table[at = number === '' ? at + 1 : +number]).join('');
  };
  const view = box.querySelector('.labkit-view'), words = box.querySelector('.labkit-sentence');
  const show = () => {
    view.innerHTML = picture(rows[controls.reduce((at, one) => at * one.names.length + one.at, 0)]);
    view.firstElementChild.style.minWidth = '520px';
    words.textContent = view.firstElementChild.getAttribute('aria-label');
  };
  const shown = controls.map(one => {
    const row = document.createElement('label'), told = document.createElement('output');
    const input = document.createElement(one.listed ? 'select' : 'input');
    row.style.cssText = 'display:flex;flex-wrap:wrap;gap:.2em .8em;align-items:center;margin:.3em 0';
    const name = document.createElement('span');
    name.style.minWidth = '10.5em';
    name.textContent = one.label;
    if (one.listed) one.names.forEach((text, at) => input.add(new Option(text, at)));
    else Object.assign(input, {type: 'range', min: 0, max: one.names.length - 1});
    input.value = one.at;
    input.style.width = 'min(320px, 82%)';
    const tell = () => {
      told.textContent = one.listed ? '' : one.names[one.at];
      input.setAttribute('aria-valuetext', one.names[one.at]);
    };
    input.addEventListener('input', () => { one.at = +input.value; tell(); show(); });
    tell();
    row.append(name, input, told);
    return row;
  });
  box.prepend(...shown);
  show();
})();
