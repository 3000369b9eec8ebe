/**
 * requirements.txt, pyproject.toml or Pipfile: packages go into a virtual environment in the folder of the project.
 *
 * uv installs several times as fast as pip, which matters most on emulated machines. It is stricter about some requirements, and
 * images of operators may not have it, so pip follows where uv fails.
 */
import { commandRun, type Parts } from './parts.ts'
import type { Project } from './project.ts'

const VENV = '{ uv venv -q --no-project --clear --seed --python python3 .venv || python3 -m venv .venv; }'
const installPackages = (what: string): string =>
  `{ uv pip install --compile-bytecode ${what} || pip install ${what}; }`
const MODULES = ['main', 'app', 'server', 'api', 'app/main', 'app/app', 'src/main', 'src/app', 'application', 'wsgi']

export function detectPython(project: Project, framework: string | null): Parts {
  const declared = ['requirements.txt', 'pyproject.toml', 'Pipfile'].map((file) => project.text(file) ?? '').join('\n')
  const uses = (name: string): boolean =>
    new RegExp(`(?:^|[\\s"'\\[,])${name}(?:$|[\\s"'\\[\\]=<>~!,;])`, 'im').test(declared)
  const kind = framework ?? (['fastapi', 'flask'].find(uses) || (project.has('manage.py') ? 'django' : null))
  const { run, needs } = findRun(project, kind, uses)
  return {
    runtime: 'python',
    notes: kind === null ? [] : [`framework: ${kind}`],
    install: [VENV, findInstall(project), ...(needs ? [installPackages(needs)] : [])].filter(Boolean).join(' && '),
    build: undefined,
    run,
  }
}

function findInstall(project: Project): string | undefined {
  if (project.has('requirements.txt')) return installPackages('-r requirements.txt')
  if (project.has('Pipfile')) return `${installPackages('pipenv')} && pipenv install`
  if (project.has('pyproject.toml')) return installPackages('.')
  return undefined
}

type Found = { run: Parts['run']; needs?: string }

function findRun(project: Project, kind: string | null, uses: (name: string) => boolean): Found {
  // Its program is what makes a project a Django project, whatever else it uses.
  if (project.has('manage.py') || kind === 'django') return { run: commandRun(django(project, uses)) }
  if (kind === 'fastapi') {
    const target = findApp(project, /^([A-Za-z_]\w*)[ \t]*(?::[^=\n]*)?=[ \t]*(?:fastapi\.)?FastAPI\(/m)
    const run = target === undefined ? undefined : commandRun(`uvicorn ${target} --host 0.0.0.0 --port "$PORT"`)
    // The package does not bring its server along.
    return { run, ...(uses('uvicorn') ? {} : { needs: 'uvicorn' }) }
  }
  if (kind === 'flask') {
    const target = findApp(project, /^([A-Za-z_]\w*)[ \t]*(?::[^=\n]*)?=[ \t]*(?:flask\.)?Flask\(/m)
    if (target === undefined) return { run: undefined }
    if (uses('gunicorn')) return { run: commandRun(`gunicorn ${target} --bind "0.0.0.0:$PORT"`) }
    return { run: commandRun(`flask --app ${target} run --host 0.0.0.0 --port "$PORT"`) }
  }
  const script = ['main.py', 'app.py'].find((file) => project.has(file))
  return { run: script === undefined ? undefined : commandRun(`python ${script}`) }
}

function django(project: Project, uses: (name: string) => boolean): string {
  const wsgi = project.list().find((file) => /^[A-Za-z_]\w*\/wsgi\.py$/.test(file))
  if (!uses('gunicorn') || !wsgi) return 'python manage.py runserver "0.0.0.0:$PORT"'
  return `gunicorn ${wsgi.replace('/wsgi.py', '.wsgi')}:application --bind "0.0.0.0:$PORT"`
}

/** `module:variable` of the file that creates the app. */
function findApp(project: Project, creation: RegExp): string | undefined {
  const candidates = [...MODULES, ...project.list().flatMap((file) => /^([A-Za-z_]\w*)\.py$/.exec(file)?.[1] ?? [])]
  for (const module of candidates) {
    const [, variable] = creation.exec(project.text(`${module}.py`) ?? '') ?? []
    if (variable !== undefined) return `${module.replaceAll('/', '.')}:${variable}`
  }
  const existing = candidates.find((module) => project.has(`${module}.py`))
  return existing === undefined ? undefined : `${existing.replaceAll('/', '.')}:app`
}
