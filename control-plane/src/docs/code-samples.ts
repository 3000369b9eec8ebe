/**
 * Examples of an operation in curl, TypeScript and Python, for the API reference. They work when pasted: the base URL and
 * the key come from the variables that `./warren env` prints, and what a reader has to fill in is a shell-like name in
 * capitals, such as SANDBOX_ID.
 */
export type CodeSample = { lang: string; label: string; source: string }

export type SampleOperation = {
  method: string
  /** With parameters in braces, as in OpenAPI. */
  path: string
  isPublic: boolean
  /** Query parameters that the operation requires. */
  query: string[]
  body?: object
  kind: 'json' | 'upload' | 'download' | 'lines' | 'upgrade' | 'websocket'
}

export function renderCodeSamples(operation: SampleOperation): CodeSample[] {
  const render = RENDERERS[operation.kind]
  return [
    { lang: 'shell', label: 'curl', source: render.curl(operation) },
    { lang: 'typescript', label: 'TypeScript', source: render.typescript(operation) },
    { lang: 'python', label: 'Python', source: render.python(operation) },
  ]
}

type Renderer = Record<'curl' | 'typescript' | 'python', (operation: SampleOperation) => string>

/** What to fill in for a path or query parameter. */
const PLACEHOLDERS: Record<string, string> = {
  id: 'SANDBOX_ID',
  net: 'NETWORK_ID',
  process_id: 'PROCESS_ID',
  ip: 'SANDBOX_IP',
  port: '8000',
  path: '/root/hello.txt',
}

/** What `id` means after the first part of the path, if not a sandbox. */
const ID_PLACEHOLDERS: Record<string, string> = { networks: 'NETWORK_ID', templates: 'TEMPLATE_ID' }

function renderPath({ path, query }: SampleOperation): string {
  const [, , resource = ''] = path.split('/')
  const fill = (name: string) =>
    (name === 'id' ? ID_PLACEHOLDERS[resource] : undefined) ?? PLACEHOLDERS[name] ?? name.toUpperCase()
  const search = query.map((name) => `${name}=${fill(name)}`).join('&')
  return path.replace(/\{(\w+)\}/g, (_, name: string) => fill(name)) + (search === '' ? '' : `?${search}`)
}

const curl = (operation: SampleOperation, options: string[]): string => {
  const method = operation.method === 'GET' ? '' : `-X ${operation.method} `
  const key = operation.isPublic ? [] : ['-H "X-Api-Key: $WARREN_API_KEY"']
  return [`curl ${method}"$WARREN_BASE_URL${renderPath(operation)}"`, ...key, ...options].join(' \\\n  ')
}

const TYPESCRIPT_ENV = 'const { WARREN_BASE_URL, WARREN_API_KEY } = process.env'

function fetchCall(operation: SampleOperation, options: { body?: string; headers?: string[] } = {}): string {
  const key = operation.isPublic ? [] : ["'X-Api-Key': WARREN_API_KEY!"]
  const headers = [...key, ...(options.headers ?? [])]
  const fields = [
    ...(operation.method === 'GET' ? [] : [`  method: '${operation.method}',`]),
    ...(headers.length === 0 ? [] : [`  headers: { ${headers.join(', ')} },`]),
    ...(options.body === undefined ? [] : [`  body: ${options.body},`]),
  ]
  const url = `\`\${WARREN_BASE_URL}${renderPath(operation)}\``
  return fields.length === 0
    ? `const response = await fetch(${url})`
    : `const response = await fetch(${url}, {\n${fields.join('\n')}\n})`
}

const typescript = (...lines: string[]): string => lines.join('\n')
const CHECK_RESPONSE = 'if (!response.ok) throw new Error(await response.text())'

const PYTHON_IMPORTS = 'import os\nimport requests\n'

function requestsCall(operation: SampleOperation, options: string[] = []): string {
  const key = operation.isPublic ? [] : ['headers={"X-Api-Key": os.environ["WARREN_API_KEY"]}']
  const args = [`os.environ["WARREN_BASE_URL"] + "${renderPath(operation)}"`, ...key, ...options]
  return `response = requests.${operation.method.toLowerCase()}(\n${args.map((arg) => `    ${arg},\n`).join('')})`
}

const python = (...lines: string[]): string => [PYTHON_IMPORTS, ...lines].join('\n')

const JSON_RENDERER: Renderer = {
  curl: (operation) =>
    curl(
      operation,
      operation.body === undefined
        ? []
        : [
            "-H 'Content-Type: application/json'",
            `-d '${JSON.stringify(operation.body, null, 2).replaceAll('\n', '\n  ')}'`,
          ],
    ),
  typescript: (operation) =>
    typescript(
      TYPESCRIPT_ENV,
      fetchCall(
        operation,
        operation.body === undefined
          ? {}
          : {
              headers: ["'Content-Type': 'application/json'"],
              body: `JSON.stringify(${renderTypescript(operation.body)})`,
            },
      ),
      CHECK_RESPONSE,
      'const { data } = await response.json()',
      'console.log(data)',
    ),
  python: (operation) =>
    python(
      requestsCall(operation, operation.body === undefined ? [] : [`json=${renderPython(operation.body)}`]),
      'response.raise_for_status()',
      'print(response.json()["data"])',
    ),
}

const RENDERERS: Record<SampleOperation['kind'], Renderer> = {
  json: JSON_RENDERER,
  upload: {
    curl: (operation) => curl(operation, ['--data-binary @hello.txt']),
    typescript: (operation) =>
      typescript(
        "import { openAsBlob } from 'node:fs'\n",
        TYPESCRIPT_ENV,
        fetchCall(operation, { body: "await openAsBlob('hello.txt')" }),
        CHECK_RESPONSE,
      ),
    python: (operation) =>
      python(
        'with open("hello.txt", "rb") as file:',
        indent(requestsCall(operation, ['data=file'])),
        'response.raise_for_status()',
      ),
  },
  download: {
    curl: (operation) => curl(operation, ['-o hello.txt']),
    typescript: (operation) =>
      typescript(
        "import { writeFile } from 'node:fs/promises'\n",
        TYPESCRIPT_ENV,
        fetchCall(operation),
        CHECK_RESPONSE,
        "await writeFile('hello.txt', response.body!)",
      ),
    python: (operation) =>
      python(
        requestsCall(operation, ['stream=True']),
        'response.raise_for_status()',
        'with open("hello.txt", "wb") as file:',
        '    for chunk in response.iter_content(1 << 20):',
        '        file.write(chunk)',
      ),
  },
  lines: {
    curl: (operation) => curl(operation, ['--no-buffer']),
    typescript: (operation) =>
      typescript(
        "import { createInterface } from 'node:readline'",
        "import { Readable } from 'node:stream'\n",
        TYPESCRIPT_ENV,
        fetchCall(operation),
        CHECK_RESPONSE,
        'for await (const line of createInterface({ input: Readable.fromWeb(response.body!) })) {',
        '  console.log(JSON.parse(line))',
        '}',
      ),
    python: (operation) =>
      `import json\n${python(
        requestsCall(operation, ['stream=True']),
        'response.raise_for_status()',
        'for line in response.iter_lines():',
        '    print(json.loads(line))',
      )}`,
  },
  upgrade: {
    curl: (operation) =>
      curl(operation, ['--http1.1', '--no-buffer', "-H 'Connection: Upgrade'", "-H 'Upgrade: tcp-tunnel'"]),
    typescript: (operation) =>
      typescript(
        "import { request } from 'node:http'\n",
        TYPESCRIPT_ENV,
        `const upgrade = request(\`\${WARREN_BASE_URL}${renderPath(operation)}\`, {`,
        `  method: '${operation.method}',`,
        "  headers: { 'X-Api-Key': WARREN_API_KEY!, Connection: 'Upgrade', Upgrade: 'tcp-tunnel' },",
        '})',
        "upgrade.on('upgrade', (_response, socket) => {",
        '  process.stdin.pipe(socket).pipe(process.stdout)',
        '})',
        'upgrade.end()',
      ),
    python: (operation) =>
      [
        'import os',
        'import socket',
        'from urllib.parse import urlsplit\n',
        'url = urlsplit(os.environ["WARREN_BASE_URL"])',
        'connection = socket.create_connection((url.hostname, url.port or 80))',
        'connection.sendall(',
        `    f"${operation.method} ${renderPath(operation)} HTTP/1.1\\r\\nHost: {url.netloc}\\r\\n"`,
        '    f"X-Api-Key: {os.environ[\'WARREN_API_KEY\']}\\r\\n"',
        '    "Connection: Upgrade\\r\\nUpgrade: tcp-tunnel\\r\\n\\r\\n".encode()',
        ')',
        '# After the response 101 the connection carries bytes in both directions.',
        'print(connection.recv(4096).decode())',
      ].join('\n'),
  },
  websocket: {
    curl: (operation) =>
      [
        '# Terminal client: cargo install websocat',
        `websocat --binary -H "X-Api-Key: $WARREN_API_KEY" "ws\${WARREN_BASE_URL#http}${renderPath(operation)}"`,
      ].join('\n'),
    typescript: (operation) =>
      typescript(
        "import { WebSocket } from 'ws'\n",
        TYPESCRIPT_ENV,
        `const url = \`\${WARREN_BASE_URL!.replace(/^http/, 'ws')}${renderPath(operation)}\``,
        "const shell = new WebSocket(url, { headers: { 'X-Api-Key': WARREN_API_KEY! } })",
        "shell.on('message', (data: Buffer) => process.stdout.write(data))",
      ),
    python: (operation) =>
      [
        'import os',
        'import sys',
        'from websockets.sync.client import connect\n',
        `url = os.environ["WARREN_BASE_URL"].replace("http", "ws", 1) + "${renderPath(operation)}"`,
        'with connect(url, additional_headers={"X-Api-Key": os.environ["WARREN_API_KEY"]}) as shell:',
        '    for message in shell:',
        '        sys.stdout.buffer.write(message)',
        '        sys.stdout.flush()',
      ].join('\n'),
  },
}

const indent = (text: string): string => text.replace(/^/gm, '    ')

/** A JSON value as an object literal: names without quotes, strings in single ones. */
function renderTypescript(value: unknown): string {
  if (typeof value === 'string') return `'${value.replace(/[\\']/g, '\\$&').replaceAll('\n', '\\n')}'`
  if (Array.isArray(value)) return `[${value.map(renderTypescript).join(', ')}]`
  if (typeof value !== 'object' || value === null) return String(value)
  return `{ ${Object.entries(value)
    .map(([name, field]) => `${name}: ${renderTypescript(field)}`)
    .join(', ')} }`
}

function renderPython(value: unknown): string {
  if (typeof value === 'boolean') return value ? 'True' : 'False'
  if (value === null) return 'None'
  if (Array.isArray(value)) return `[${value.map(renderPython).join(', ')}]`
  if (typeof value !== 'object') return JSON.stringify(value)
  return `{${Object.entries(value)
    .map(([name, field]) => `${JSON.stringify(name)}: ${renderPython(field)}`)
    .join(', ')}}`
}
