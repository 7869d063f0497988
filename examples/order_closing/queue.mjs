// How Node speaks to the gateway: JSON over HTTP.

const base = process.env.QUEUE ?? "http://127.0.0.1:7070";
const token = process.env.QUEUE_TOKEN;

export async function ask(method, path, body) {
  const answer = await fetch(base + path, {
    method,
    headers: { "content-type": "application/json", ...(token && { authorization: `Bearer ${token}` }) },
    body: body && JSON.stringify(body),
  });
  const said = await answer.json();
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${said.detail}`);
  return said;
}
