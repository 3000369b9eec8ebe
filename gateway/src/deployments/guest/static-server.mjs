/**
 * Serves a folder over HTTP, in a sandbox: node static-server.mjs <folder> <files|spa>. It needs nothing but Node. With `spa`,
 * paths without a file get index.html, so that a single-page app can handle them.
 */
import { createReadStream, existsSync, readdirSync, realpathSync, statSync } from 'node:fs'
import { createServer } from 'node:http'
import path from 'node:path'

const TYPES = {
  '.avif': 'image/avif',
  '.css': 'text/css; charset=utf-8',
  '.csv': 'text/csv; charset=utf-8',
  '.gif': 'image/gif',
  '.gz': 'application/gzip',
  '.htm': 'text/html; charset=utf-8',
  '.html': 'text/html; charset=utf-8',
  '.ico': 'image/vnd.microsoft.icon',
  '.jpeg': 'image/jpeg',
  '.jpg': 'image/jpeg',
  '.js': 'text/javascript; charset=utf-8',
  '.json': 'application/json; charset=utf-8',
  '.map': 'application/json; charset=utf-8',
  '.md': 'text/markdown; charset=utf-8',
  '.mjs': 'text/javascript; charset=utf-8',
  '.mp3': 'audio/mpeg',
  '.mp4': 'video/mp4',
  '.otf': 'font/otf',
  '.pdf': 'application/pdf',
  '.png': 'image/png',
  '.svg': 'image/svg+xml',
  '.ttf': 'font/ttf',
  '.txt': 'text/plain; charset=utf-8',
  '.wasm': 'application/wasm',
  '.webm': 'video/webm',
  '.webmanifest': 'application/manifest+json',
  '.webp': 'image/webp',
  '.woff': 'font/woff',
  '.woff2': 'font/woff2',
  '.xml': 'application/xml; charset=utf-8',
  '.zip': 'application/zip',
}

const root = findRoot(process.argv[2])
const isSpa = process.argv[3] === 'spa'

createServer((request, response) => {
  if (request.method !== 'GET' && request.method !== 'HEAD') {
    return response.writeHead(405, { Allow: 'GET, HEAD' }).end()
  }
  const wanted = parsePath(request.url ?? '/')
  if (wanted === undefined) return response.writeHead(400).end('Bad request\n')
  const found = findFile(wanted)
  if (found?.redirect) return response.writeHead(301, { Location: found.redirect }).end()
  if (found) return send(request, response, 200, found.file)
  if (isSpa && findFile('/index.html')) return send(request, response, 200, path.join(root, 'index.html'))
  const page = findFile('/404.html')
  if (page?.file) return send(request, response, 404, page.file)
  response.writeHead(404, { 'Content-Type': 'text/plain' }).end('Not found\n')
}).listen(Number(process.env.PORT ?? 3000), process.env.HOST ?? '0.0.0.0')

/** Some builds put their files into a folder below the one that is named, such as dist/<name>/browser. */
function findRoot(folder) {
  let current = realpathSync(folder)
  while (!existsSync(path.join(current, 'index.html'))) {
    const folders = readdirSync(current, { withFileTypes: true }).filter((entry) => entry.isDirectory())
    const next = folders.find((entry) => entry.name === 'browser') ?? (folders.length === 1 ? folders[0] : undefined)
    if (!next) return realpathSync(folder)
    current = path.join(current, next.name)
  }
  return current
}

/** Undefined for what is not a path, or leaves the folder. */
function parsePath(url) {
  try {
    const decoded = decodeURIComponent(url.split(/[?#]/, 1)[0])
    if (!decoded.startsWith('/') || decoded.includes('\0') || decoded.split('/').includes('..')) return undefined
    return decoded
  } catch {
    return undefined
  }
}

function findFile(wanted) {
  const file = path.join(root, wanted)
  const found = inspect(file)
  if (found?.isFile()) return { file }
  if (found?.isDirectory()) {
    if (!inspect(path.join(file, 'index.html'))?.isFile()) return undefined
    // Relative links of the page need the slash. Two slashes at the start would name another host.
    if (!wanted.endsWith('/')) return { redirect: `${encodeURI(wanted).replace(/^\/+/, '/')}/` }
    return { file: path.join(file, 'index.html') }
  }
  const page = `${file}.html`
  return !wanted.endsWith('/') && inspect(page)?.isFile() ? { file: page } : undefined
}

/** Links that lead out of the folder lead nowhere. */
function inspect(file) {
  try {
    const real = realpathSync(file)
    return real === root || real.startsWith(root + path.sep) ? statSync(real) : undefined
  } catch {
    return undefined
  }
}

function send(request, response, status, file) {
  const { size, mtimeMs } = statSync(file)
  const etag = `"${size.toString(16)}-${Math.floor(mtimeMs).toString(16)}"`
  const headers = {
    'Content-Type': TYPES[path.extname(file).toLowerCase()] ?? 'application/octet-stream',
    ETag: etag,
    'Cache-Control': 'no-cache',
    'Accept-Ranges': 'bytes',
  }
  if (status === 200 && request.headers['if-none-match'] === etag) return response.writeHead(304, headers).end()
  const range = status === 200 ? parseRange(request.headers.range, size) : undefined
  if (range === 'none') return response.writeHead(416, { 'Content-Range': `bytes */${size}` }).end()
  const [from, to] = range ?? [0, size - 1]
  if (range) headers['Content-Range'] = `bytes ${from}-${to}/${size}`
  response.writeHead(range ? 206 : status, { ...headers, 'Content-Length': to - from + 1 })
  if (request.method === 'HEAD' || size === 0) return response.end()
  const stream = createReadStream(file, { start: from, end: to })
  stream.on('error', () => response.destroy())
  response.on('close', () => stream.destroy())
  stream.pipe(response)
}

/** One range; anything else is answered with the whole file. */
function parseRange(header, size) {
  const [, first, last] = /^bytes=(\d*)-(\d*)$/.exec(header ?? '') ?? []
  if (first === undefined || (first === '' && last === '')) return undefined
  const from = first === '' ? Math.max(size - Number(last), 0) : Number(first)
  const to = first === '' || last === '' ? size - 1 : Math.min(Number(last), size - 1)
  return from > to || from >= size ? 'none' : [from, to]
}
