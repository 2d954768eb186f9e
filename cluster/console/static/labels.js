// The names at the ends of a chart's lines, since colours repeat and not everybody tells them apart.

const FONT_PX = 11;
const LINE_PX = 14;

/** Where texts that should stand at `wanted`, from the top, stand: `apart` from each other, up to `bottom`. */
export function spread(wanted, apart, bottom) {
  const order = wanted.map((y, index) => [y, index]).sort(([one], [other]) => one - other);
  const found = [];
  let next = -Infinity;
  for (const [y, index] of order) {
    found[index] = Math.max(y, next);
    next = found[index] + apart;
  }
  let least = bottom;
  for (const [, index] of order.reverse()) {
    found[index] = Math.min(found[index], least);
    least = found[index] - apart;
  }
  return found;
}

/** Writes the name of each line above its last point; `lines` have `label` and `values`. */
export function lineLabels(plot, lines, ink, halo) {
  const { ctx, bbox } = plot;
  const named = lines.flatMap((one) => {
    const last = one.values.findLastIndex((value) => value !== null);
    return one.label && last >= 0 ? [{ text: one.label, x: plot.valToPos(plot.data[0][last], "x", true), y: plot.valToPos(one.values[last], "y", true) }] : [];
  });
  if (named.length < 2) return;
  ctx.save();
  ctx.font = `${FONT_PX * devicePixelRatio}px system-ui`;
  ctx.textAlign = "right";
  ctx.textBaseline = "alphabetic";
  ctx.lineJoin = "round";
  ctx.lineWidth = 3 * devicePixelRatio;
  ctx.strokeStyle = halo;
  ctx.fillStyle = ink;
  const at = spread(named.map((one) => one.y - 4 * devicePixelRatio), LINE_PX * devicePixelRatio, bbox.top + bbox.height);
  named.forEach((one, index) => {
    const right = Math.max(Math.min(one.x, bbox.left + bbox.width), bbox.left + ctx.measureText(one.text).width);
    ctx.strokeText(one.text, right, at[index]);
    ctx.fillText(one.text, right, at[index]);
  });
  ctx.restore();
}
