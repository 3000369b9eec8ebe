/**
 * Which JavaScript framework a project uses, and where its build puts its files. The table of packages and folders is that of
 * `@vercel/frameworks`. Entries that search file contents with regular expressions are not used: the files are not trusted,
 * and such a search can take minutes.
 */
import { frameworks } from '@vercel/frameworks'

type Detector = { path?: string; matchContent?: string; matchPackage?: string }
type Setting = { value?: string | null; placeholder?: string }
type Entry = {
  slug: string | null
  name: string
  sort?: number
  detectors?: { every?: readonly Detector[]; some?: readonly Detector[] }
  settings: { buildCommand?: Setting; outputDirectory?: Setting }
}
const TABLE: readonly Entry[] = frameworks

/** `server` is a command; the others are served as files, a single-page app with index.html for every path. */
export type FrameworkRun =
  | { kind: 'server'; name: string; command: string; build: string | undefined }
  | { kind: 'static'; name: string; folder: string; isSpa: boolean; build: string | undefined }

/** Their builds are files. The others of the table have servers, or are not JavaScript. */
const STATIC_SITES = [
  ...['gatsby', 'astro', 'hexo', 'eleventy', 'docusaurus-2', 'docusaurus', 'scully', 'gridsome', 'saber', 'sapper'],
  ...['vitepress', 'vuepress', 'brunch'],
]
const SINGLE_PAGE_APPS = [
  ...['preact', 'ember', 'vue', 'ionic-angular', 'angular', 'polymer', 'svelte', 'ionic-react', 'create-react-app'],
  ...['umijs', 'stencil', 'dojo', 'vite', 'parcel'],
]
const SERVERS: Record<string, string> = {
  nextjs: 'npx next start -H 0.0.0.0 -p "$PORT"',
  nuxtjs: 'node .output/server/index.mjs',
  remix: 'npx remix-serve ./build/server/index.js',
}

/** The entries of the table that `settings.framework` means, most specific first. */
const BY_SETTING: Record<string, readonly string[]> = {
  nextjs: ['nextjs'],
  nuxtjs: ['nuxtjs'],
  remix: ['remix'],
  astro: ['astro'],
  'reactjs-spa': ['create-react-app', 'vite'],
  'vuejs-spa': ['vue', 'vite'],
  'vite-spa': ['vite'],
}

export function findFramework(
  packages: ReadonlySet<string>,
  has: (path: string) => boolean,
  setting: string | null,
): FrameworkRun | undefined {
  if (setting !== null) {
    const slugs = BY_SETTING[setting] ?? []
    const entries = slugs.map((slug) => TABLE.find((entry) => entry.slug === slug)!)
    const entry = entries.find((one) => matches(one, packages, has)) ?? entries.at(-1)
    return entry && describe(entry, packages)
  }
  // SvelteKit has no package detector in the table.
  if (packages.has('@sveltejs/kit')) return svelteKit(packages)
  const known = TABLE.filter(({ slug }) => slug !== null && isKnown(slug))
  const found = known
    .toSorted((a, b) => (a.sort ?? Number.MAX_SAFE_INTEGER) - (b.sort ?? Number.MAX_SAFE_INTEGER))
    .find((entry) => matches(entry, packages, has))
  return found && describe(found, packages)
}

const isKnown = (slug: string): boolean =>
  STATIC_SITES.includes(slug) || SINGLE_PAGE_APPS.includes(slug) || Object.hasOwn(SERVERS, slug)

function matches({ detectors }: Entry, packages: ReadonlySet<string>, has: (path: string) => boolean): boolean {
  const holds = ({ path, matchContent, matchPackage }: Detector): boolean => {
    if (matchContent !== undefined) return false
    if (matchPackage !== undefined) return packages.has(matchPackage)
    return path !== undefined && has(path)
  }
  const { every = [], some } = detectors ?? { some: [] }
  return every.every(holds) && (some === undefined || some.some(holds)) && (every.length > 0 || some !== undefined)
}

function describe(entry: Entry, packages: ReadonlySet<string>): FrameworkRun {
  const slug = entry.slug!
  const build = entry.settings.buildCommand?.value
  const common = { name: entry.name, build: build ? `npx ${build.replace(/^npx /, '')}` : undefined }
  const server = Object.hasOwn(SERVERS, slug) ? SERVERS[slug] : undefined
  if (server !== undefined) return { kind: 'server', command: server, ...common }
  if (slug === 'astro' && packages.has('@astrojs/node')) {
    return { kind: 'server', command: 'node ./dist/server/entry.mjs', ...common }
  }
  const folder = entry.settings.outputDirectory?.value ?? 'dist'
  return { kind: 'static', folder, isSpa: SINGLE_PAGE_APPS.includes(slug), ...common }
}

function svelteKit(packages: ReadonlySet<string>): FrameworkRun {
  const common = { name: 'SvelteKit', build: 'npx vite build' }
  if (packages.has('@sveltejs/adapter-static')) return { kind: 'static', folder: 'build', isSpa: true, ...common }
  return { kind: 'server', command: 'node build', ...common }
}
