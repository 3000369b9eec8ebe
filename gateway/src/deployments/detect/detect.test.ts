import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { UploadContent } from '../../uploads/read-tar.ts'
import { parseSettings } from '../../uploads/settings.ts'
import { type Plan, PlanError } from '../plan.ts'
import { detect } from './detect.ts'
import { isReadByDetector } from './project.ts'

const IMAGES = { byRuntime: new Map([['node:22', 'node-22:1']]), standard: 'devbox:1' }

function contentOf(files: Record<string, string>): UploadContent {
  const entries = Object.entries(files)
  return {
    paths: new Set(entries.map(([path]) => path)),
    texts: new Map(entries.filter(([path, text]) => isReadByDetector(path, text.length))),
  }
}

function plan(files: Record<string, string>, settings: Record<string, unknown> = {}): Plan {
  const parsed = parseSettings(settings)
  return detect(contentOf(files), parsed.settings, parsed.secrets.buildVars ?? {}, IMAGES)
}

/** What a table row states: the commands, and what serves the app. */
function summary({ build, run }: Plan): string[] {
  const steps = build?.kind === 'commands' ? build.steps.map(({ command }) => command) : []
  const served =
    run.kind === 'command'
      ? run.command
      : run.kind === 'static'
        ? `static ${run.folder || '.'}${run.isSpa ? ' spa' : ''}`
        : run.argv.join(' ')
  return [...steps, served]
}

const json = (value: object): string => JSON.stringify(value)
const NPM_INSTALL = 'npm install --no-audit --no-fund'
const VENV = '{ uv venv -q --no-project --clear --seed --python python3 .venv || python3 -m venv .venv; }'
const pip = (what: string): string => `{ uv pip install --compile-bytecode ${what} || pip install ${what}; }`

const ROWS: [what: string, files: Record<string, string>, settings: Record<string, unknown>, expected: string[]][] = [
  ['plain HTML', { 'index.html': '' }, {}, ['static .']],
  ['HTML in a folder', { 'site/index.html': '' }, { directoryPath: 'site' }, ['static site']],
  [
    'runtime static with buildDir',
    { 'public/a.html': '' },
    { runtime: 'static', buildDir: 'public' },
    ['static public'],
  ],
  [
    'a lockfile means npm ci',
    {
      'package.json': json({ scripts: { start: 'node x.js' }, dependencies: { express: '5' } }),
      'package-lock.json': '',
    },
    {},
    ['npm ci --no-audit --no-fund', 'npm run start'],
  ],
  ['no start script: main', { 'package.json': json({ main: './lib/a.js' }), 'lib/a.js': '' }, {}, ['node lib/a.js']],
  ['no main: server.js', { 'package.json': '{}', 'server.js': '' }, {}, ['node server.js']],
  [
    'pnpm by its lockfile and the version of packageManager',
    {
      'package.json': json({ packageManager: 'pnpm@9.1.0', scripts: { start: 'x' }, dependencies: { a: '1' } }),
      'pnpm-lock.yaml': '',
    },
    {},
    ['npx --yes pnpm@9.1.0 install --frozen-lockfile', 'npx --yes pnpm@9.1.0 run start'],
  ],
  [
    'yarn 4 by packageManager alone',
    { 'package.json': json({ packageManager: 'yarn@4.1.0', scripts: { start: 'x' }, dependencies: { a: '1' } }) },
    {},
    ['npx --yes -p @yarnpkg/cli-dist@4.1.0 yarn install', 'npx --yes -p @yarnpkg/cli-dist@4.1.0 yarn run start'],
  ],
  [
    'bun by its lockfile',
    { 'package.json': json({ dependencies: { hono: '4' } }), 'bun.lock': '', 'index.ts': '' },
    {},
    ['bun install --frozen-lockfile', 'bun index.ts'],
  ],
  [
    'a single-page app is served as files',
    {
      'package.json': json({ scripts: { build: 'vite build', dev: 'vite' }, devDependencies: { vite: '7' } }),
      'index.html': '',
    },
    {},
    [NPM_INSTALL, 'npm run build', 'static dist spa'],
  ],
  [
    'its start script is a development server, and not used',
    {
      'package.json': json({
        scripts: { start: 'react-scripts start', build: 'react-scripts build' },
        dependencies: { 'react-scripts': '5' },
      }),
    },
    {},
    [NPM_INSTALL, 'npm run build', 'static build spa'],
  ],
  [
    'a server with vite as a tool is a server',
    {
      'package.json': json({
        scripts: { start: 'node server.js', build: 'vite build' },
        devDependencies: { vite: '7' },
      }),
    },
    {},
    [NPM_INSTALL, 'npm run build', 'npm run start'],
  ],
  [
    'next has a server',
    { 'package.json': json({ scripts: { build: 'next build', start: 'next start' }, dependencies: { next: '16' } }) },
    {},
    [NPM_INSTALL, 'npm run build', 'npx next start -H 0.0.0.0 -p "$PORT"'],
  ],
  [
    'astro with the node adapter has a server',
    { 'package.json': json({ dependencies: { astro: '5', '@astrojs/node': '9' } }) },
    {},
    [NPM_INSTALL, 'npx astro build', 'node ./dist/server/entry.mjs'],
  ],
  [
    'the framework of the settings wins',
    { 'package.json': json({ scripts: { build: 'x' }, dependencies: { react: '19' } }) },
    { framework: 'vite-spa' },
    [NPM_INSTALL, 'npm run build', 'static dist spa'],
  ],
  [
    'commands of the settings win field by field',
    { 'package.json': json({ scripts: { build: 'x', start: 'y' }, dependencies: { a: '1' } }) },
    { buildCommand: 'make', buildFlag: '--fast', runFlag: '--verbose' },
    [NPM_INSTALL, 'make --fast', 'npm run start --verbose'],
  ],
  ['a runCommand alone is enough', { 'x.sh': '' }, { runCommand: 'sh x.sh' }, ['sh x.sh']],
  [
    'FastAPI: the file and the variable of the app are found, and uvicorn is added',
    { 'requirements.txt': 'fastapi==0.1\n', 'app/main.py': 'import x\nservice = FastAPI(title="a")\n' },
    {},
    [
      `${VENV} && ${pip('-r requirements.txt')} && ${pip('uvicorn')}`,
      'uvicorn app.main:service --host 0.0.0.0 --port "$PORT"',
    ],
  ],
  [
    'Flask with gunicorn',
    { 'requirements.txt': 'Flask\ngunicorn\n', 'app.py': 'app = Flask(__name__)\n' },
    {},
    [`${VENV} && ${pip('-r requirements.txt')}`, 'gunicorn app:app --bind "0.0.0.0:$PORT"'],
  ],
  [
    'Django without gunicorn',
    { 'requirements.txt': 'django\n', 'manage.py': '', 'site/wsgi.py': '' },
    {},
    [`${VENV} && ${pip('-r requirements.txt')}`, 'python manage.py runserver "0.0.0.0:$PORT"'],
  ],
  [
    'Django with gunicorn',
    { 'requirements.txt': 'django\ngunicorn\n', 'manage.py': '', 'site/wsgi.py': '' },
    {},
    [`${VENV} && ${pip('-r requirements.txt')}`, 'gunicorn site.wsgi:application --bind "0.0.0.0:$PORT"'],
  ],
  ['plain Python', { 'pyproject.toml': '', 'main.py': '' }, {}, [`${VENV} && ${pip('.')}`, 'python main.py']],
  [
    'Go with its program in a folder',
    { 'go.mod': '', 'cmd/api/main.go': 'package main\n', 'x.go': 'package x\n' },
    {},
    ['go mod download', 'go build -o ./bin/app ./cmd/api', './bin/app'],
  ],
  [
    'Rust',
    { 'Cargo.toml': '[package]\nname = "web-app"\n[dependencies]\nname = "other"\n' },
    {},
    ['cargo build --release', './target/release/web-app'],
  ],
  ['a Dockerfile is the last resort', { Dockerfile: 'FROM node:22\nCMD ["node", "x"]' }, {}, ['node x']],
  [
    'beside package.json it is not used',
    { Dockerfile: 'FROM x', 'package.json': '{}', 'app.js': '' },
    {},
    ['node app.js'],
  ],
  [
    'unless the settings say so',
    { Dockerfile: 'FROM node:22\nENTRYPOINT ["node"]\nCMD ["y"]', 'package.json': '{}', 'app.js': '' },
    { hasDockerfile: true },
    ['node y'],
  ],
]

for (const [what, files, settings, expected] of ROWS) {
  test(`detection: ${what}`, () => assert.deepEqual(summary(plan(files, settings)), expected))
}

test('what cannot be run says what to set', () => {
  const expected = 'could not detect how to run this project; set settings.runCommand'
  assert.throws(() => plan({ 'notes.txt': '' }), new PlanError(expected))
})

test('an absent Dockerfile, and an absent folder, are named', () => {
  assert.throws(() => plan({ 'index.html': '' }, { hasDockerfile: true }), /the upload has no Dockerfile/)
  assert.throws(() => plan({ 'index.html': '' }, { directoryPath: 'web' }), /the upload has no folder web/)
})

test('a package.json that is not JSON is a reason, not an error', () => {
  assert.throws(() => plan({ 'package.json': '{' }), PlanError)
})

test('a runtime has the image of the operator, or the standard one and a note', () => {
  const [own, standard] = [
    plan({ 'a.js': '' }, { runtime: 'node:22', runCommand: 'x' }),
    plan({ 'a.js': '' }, { runtime: 'node:18', runCommand: 'x' }),
  ]

  assert.equal(own.image, 'node-22:1')
  assert.equal(standard.image, 'devbox:1')
  assert.match(standard.notes.join(), /node:18 has no dedicated image/)
})
