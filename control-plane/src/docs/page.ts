/** Renders the OpenAPI document as one HTML page without scripts, with an anchor for every operation. */

type Schema = Record<string, unknown>
type Operation = {
  summary?: string
  description?: string
  tags?: string[]
  security?: object[]
  parameters?: { name: string; in: string; required?: boolean; schema: Schema; description?: string }[]
  requestBody?: { content: Record<string, { schema: Schema }> }
  responses: Record<string, { description?: string; content?: Record<string, { schema: Schema }> }>
}

export function renderPage(document: object): string {
  const { info, paths } = document as { info: { title: string; version: string; description?: string }; paths: object }
  const operations = Object.entries(paths as Record<string, Record<string, Operation>>).flatMap(([path, methods]) =>
    Object.entries(methods)
      .filter(([method]) => method !== 'head')
      .map(([method, operation]) => ({ method: method.toUpperCase(), path, operation })),
  )
  const tags = [...new Set(operations.flatMap(({ operation }) => operation.tags ?? ['other']))]
  const sections = tags.map((tag) => {
    const listed = operations.filter(({ operation }) => (operation.tags ?? ['other']).includes(tag))
    return { tag, listed }
  })
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(info.title)}</title>
<style>${STYLE}</style>
</head>
<body>
<nav aria-label="Endpoints">
<strong>${escapeHtml(info.title)}</strong>
${sections.map(({ tag, listed }) => `<h2>${escapeHtml(tag)}</h2><ul>${listed.map(navItem).join('')}</ul>`).join('\n')}
<p><a href="openapi.json">openapi.json</a></p>
</nav>
<main>
<h1>${escapeHtml(info.title)} <small>${escapeHtml(info.version)}</small></h1>
<p>${escapeHtml(info.description ?? '')}</p>
${ENVELOPE}
${sections.map(({ tag, listed }) => `<h2>${escapeHtml(tag)}</h2>${listed.map(renderOperation).join('\n')}`).join('\n')}
</main>
</body>
</html>
`
}

type ListedOperation = { method: string; path: string; operation: Operation }

const anchor = ({ method, path }: ListedOperation) => `${method}-${path}`.replace(/[^A-Za-z0-9]+/g, '-').toLowerCase()

const navItem = (listed: ListedOperation) =>
  `<li><a href="#${anchor(listed)}"><b class="${listed.method}">${listed.method}</b> ${escapeHtml(listed.path)}</a></li>`

function renderOperation(listed: ListedOperation): string {
  const { operation } = listed
  const parameters = (operation.parameters ?? []).map((parameter) =>
    row(
      `${parameter.name}`,
      parameter.schema,
      parameter.required ?? false,
      `${parameter.in}. ${parameter.description ?? ''}`,
    ),
  )
  const body = Object.values(operation.requestBody?.content ?? {})[0]?.schema
  const responses = Object.entries(operation.responses)
    .filter(([status]) => /^\d+$/.test(status))
    .map(([status, response]) => renderResponse(status, Object.values(response.content ?? {})[0]?.schema))
  return `<article id="${anchor(listed)}">
<h3><b class="${listed.method}">${listed.method}</b> <code>${escapeHtml(listed.path)}</code></h3>
<p>${escapeHtml(operation.summary ?? '')}${operation.security?.length === 0 ? ' <em>Public.</em>' : ''}</p>
${operation.description ? `<p>${escapeHtml(operation.description)}</p>` : ''}
${parameters.length > 0 ? table('Parameters', parameters) : ''}
${body ? table('Body', rows(body)) : ''}
${responses.join('')}
</article>`
}

function renderResponse(status: string, schema: Schema | undefined): string {
  const data = (schema?.properties as Record<string, Schema> | undefined)?.data ?? schema
  return data ? table(`Response ${status}: data`, rows(data)) : `<h4>Response ${status}</h4>`
}

const table = (title: string, lines: string[]) =>
  lines.length === 0
    ? `<h4>${title}</h4><p>Empty object.</p>`
    : `<h4>${title}</h4><div class="scroll"><table><thead><tr><th>Field</th><th>Type</th><th>Notes</th></tr></thead><tbody>${lines.join('')}</tbody></table></div>`

/** One row for each field of an object; nested fields are listed by their path, such as `config.bucket`. */
function rows(schema: Schema, prefix = ''): string[] {
  if (schema.type === 'array') return rows(schema.items as Schema, `${prefix}[]`)
  const properties = schema.properties as Record<string, Schema> | undefined
  if (!properties) return prefix === '' ? [row('', schema, true, '')] : []
  const required = (schema.required as string[] | undefined) ?? []
  const at = prefix === '' ? '' : `${prefix}.`
  return Object.entries(properties).flatMap(([name, field]) => [
    row(`${at}${name}`, field, required.includes(name), ''),
    ...(field.type === 'object' || field.type === 'array' ? rows(field, `${at}${name}`) : []),
  ])
}

const row = (name: string, schema: Schema, required: boolean, notes: string) =>
  `<tr><td><code>${escapeHtml(name)}</code>${required ? '' : ' <small>optional</small>'}</td><td>${escapeHtml(typeOf(schema))}</td><td>${escapeHtml(`${notes} ${String(schema.description ?? '')}`.trim())}</td></tr>`

function typeOf(schema: Schema): string {
  if (schema.const !== undefined) return JSON.stringify(schema.const)
  if (Array.isArray(schema.enum)) return schema.enum.map((one) => JSON.stringify(one)).join(' | ')
  if (Array.isArray(schema.anyOf)) return schema.anyOf.map((one) => typeOf(one as Schema)).join(' | ')
  if (schema.type === 'array') return `${typeOf(schema.items as Schema)}[]`
  if (schema.patternProperties || schema.additionalProperties) return 'map of string'
  return String(schema.type ?? 'any')
}

const escapeHtml = (text: string) =>
  text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`).replace(/`([^`]+)`/g, '<code>$1</code>')

const ENVELOPE = `<h2 id="responses">Responses</h2>
<p>A successful request returns <code>{"status":"success","data":…}</code>. A request that has to change returns 4xx and
<code>{"status":"fail","data":{"&lt;field&gt;":"what is wrong","code":"…"}}</code>. A failure of the service returns 5xx
and <code>{"status":"error","message":"…","code":503}</code>. Lists take <code>limit</code> and <code>offset</code>.</p>`

const STYLE = `
:root{color-scheme:light dark;--line:color-mix(in srgb,currentColor 18%,transparent);--soft:color-mix(in srgb,currentColor 6%,transparent)}
*{box-sizing:border-box}
body{margin:0;font:16px/1.55 system-ui,sans-serif;display:grid;grid-template-columns:minmax(16rem,20rem) minmax(0,1fr)}
nav{border-right:1px solid var(--line);padding:1.5rem 1rem;height:100vh;overflow:auto;position:sticky;top:0;font-size:.86rem}
nav h2{font-size:.8rem;text-transform:uppercase;letter-spacing:.06em;margin:1.2rem 0 .3rem;opacity:.7}
nav ul{list-style:none;margin:0;padding:0}nav a{display:block;padding:.15rem 0;color:inherit;text-decoration:none;overflow-wrap:anywhere}
nav a:hover,nav a:focus-visible{text-decoration:underline}
main{padding:2rem clamp(1rem,4vw,4rem);max-width:62rem}
h1 small{font-size:.5em;opacity:.6}main>h2{margin-top:3rem;text-transform:capitalize;border-bottom:1px solid var(--line)}
article{margin:2rem 0;scroll-margin-top:1rem}h3{font-weight:500;margin-bottom:.2rem}h4{margin:1rem 0 .3rem}
b.GET{color:#0a7d4b}b.POST{color:#2563c9}b.PUT,b.PATCH{color:#a45b00}b.DELETE{color:#c02f2f}
@media (prefers-color-scheme:dark){b.GET{color:#4fd39a}b.POST{color:#86b1ff}b.PUT,b.PATCH{color:#f0b357}b.DELETE{color:#ff8a8a}}
code{font:.92em ui-monospace,monospace;background:var(--soft);padding:.05em .3em;border-radius:4px}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.92rem}td,th{text-align:left;padding:.35rem .7rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
small{opacity:.65}
@media (max-width:50rem){body{display:block}nav{position:static;height:auto;border-right:0;border-bottom:1px solid var(--line)}}
`
