/** Uploads as the deployment examines them: whole archives, honest and hostile. */
import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { gzipSync } from 'node:zlib'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { parseSettings } from '../../uploads/settings.ts'
import { packTar } from '../../uploads/tar.ts'
import type { Plan } from '../plan.ts'
import { examineUpload } from './examine.ts'

const folder = await mkdtemp(path.join(tmpdir(), 'warren-examine-'))
after(() => rm(folder, { recursive: true, force: true }))
const IMAGES = { byRuntime: new Map<string, string>(), standard: 'devbox:1' }
let uploads = 0

async function examine(files: Record<string, string>, settings: object = {}, limitMs?: number): Promise<Plan> {
  const file = path.join(folder, `${++uploads}.tar.gz`)
  const packed = Object.entries(files).map(([name, text]) => ({
    path: name,
    content: Buffer.from(text),
    isExecutable: false,
  }))
  await writeFile(file, gzipSync(packTar(packed)))
  const parsed = parseSettings(settings)
  return examineUpload({ file, settings: parsed.settings, buildVars: {}, images: IMAGES }, limitMs)
}

test('a project is examined from its archive, and what .dockerignore hides is part of the plan', async () => {
  const files = { Dockerfile: 'FROM debian\nCMD ["x"]\n', '.dockerignore': '*.log', 'a.log': '', 'b.txt': '' }

  const [site, image] = [await examine({ 'index.html': '' }), await examine(files)]

  assert.deepEqual(site.run, { kind: 'static', folder: '', isSpa: false })
  assert.ok(image.build?.kind === 'dockerfile')
  assert.deepEqual(image.build.ignored, ['a.log'])
})

test('a project that cannot be run has its reason', async () => {
  await assert.rejects(examine({ 'notes.txt': '' }), /^PlanError: could not detect how to run this project/)
})

test('an upload that is not there is an error, not a reason', async () => {
  const { settings } = parseSettings({})
  const gone = examineUpload({ file: path.join(folder, 'gone'), settings, buildVars: {}, images: IMAGES })

  await assert.rejects(gone, (error: NodeJS.ErrnoException) => error.code === 'ENOENT')
})

/** As large as the detector reads. */
const LONG = 256 * 1024 - 100
/** Whatever repeats in an expression can be made to repeat. */
const HOSTILE = [' ', '\t', '\n', 'a', 'a ', '"', '[', '=', 'a:', ':=', 'name\n', '[package]\n', '$', '\\\n', '#\n']
const PROJECTS: Record<string, (text: string) => Record<string, string>> = {
  FastAPI: (text) => ({ 'requirements.txt': `fastapi ${text}`, 'main.py': `app:${text}` }),
  Flask: (text) => ({ 'requirements.txt': `flask\n${text}`, 'main.py': `app${text}` }),
  pyproject: (text) => ({ 'pyproject.toml': text, 'main.py': text }),
  'package.json': (text) => ({ 'package.json': JSON.stringify({ scripts: { start: text, build: text }, main: text }) }),
  Go: (text) => ({ 'go.mod': text, 'main.go': `package main${text}x` }),
  Rust: (text) => ({ 'Cargo.toml': `[package]${text}\nname${text}` }),
  Dockerfile: (text) => ({ Dockerfile: `FROM debian\nRUN ${text}`, '.dockerignore': 'x' }),
}

for (const [kind, filesOf] of Object.entries(PROJECTS)) {
  test(`${kind}: no file that is long and hostile takes long to examine`, async () => {
    for (const part of HOSTILE) {
      const files = filesOf(part.repeat(LONG / part.length))
      const startedAt = performance.now()
      await examine(files).catch((error: Error) => assert.equal(error.name, 'PlanError'))
      const tookMs = performance.now() - startedAt
      assert.ok(tookMs < scaleLimit(5_000), `${JSON.stringify(part)} took ${tookMs} ms`)
    }
  })
}

test('patterns of a .dockerignore that are made to take long are refused, and hold up nothing else', async () => {
  const files = {
    Dockerfile: 'FROM debian\nCMD ["x"]\n',
    '.dockerignore': `${'*a'.repeat(40)}b`,
    ['a'.repeat(200)]: '',
  }

  const slow = examine(files, {}, 1_000)

  await assert.rejects(slow, /^PlanError: the files of the project take too long to examine$/)
})
