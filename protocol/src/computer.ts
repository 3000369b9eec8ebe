/**
 * The desktop of a sandbox: screenshots, mouse, keyboard, clipboard and programs. Screens and windows are in
 * computer-screen.ts and computer-window.ts. Actions respond with `{ok: true}`; an empty body uses the defaults.
 */
import { type Static, Type } from 'typebox'
import { Pixels, SideLength } from './computer-screen.ts'
import { optionalNull } from './optional-null.ts'

/** Keeps a single call from scrolling or clicking for minutes. */
const REPEAT_MAX = 100
const TYPE_DELAY_MAX_MS = 1_000

const ScreenIdQuery = Type.Optional(Type.String({ description: 'Screen to use. Defaults to the primary screen.' }))

/** Query of every desktop operation. */
export const ComputerQuery = Type.Object({ screen_id: ScreenIdQuery })
export type ComputerQuery = Static<typeof ComputerQuery>

/** The response is a PNG image. */
export const ScreenshotQuery = Type.Object({
  screen_id: ScreenIdQuery,
  window_id: Type.Optional(Type.String({ description: 'Capture this window only.' })),
  x: Type.Optional(Pixels),
  y: Type.Optional(Pixels),
  width: Type.Optional(SideLength),
  height: Type.Optional(SideLength),
})
export type ScreenshotQuery = Static<typeof ScreenshotQuery>

/** The invalid field and its error. A rectangle is complete or absent, and excludes `window_id`. */
export function checkScreenshot(query: ScreenshotQuery): { field: string; text: string } | undefined {
  const sides = ['x', 'y', 'width', 'height'] as const
  const missing = sides.find((side) => query[side] === undefined)
  if (sides.every((side) => query[side] === undefined)) return undefined
  if (missing) return { field: missing, text: 'is required: a rectangle needs x, y, width and height' }
  return query.window_id ? { field: 'window_id', text: 'cannot be combined with a rectangle' } : undefined
}

export const ScreenSizeView = Type.Object({ width: Type.Integer(), height: Type.Integer() })
export type ScreenSizeView = Static<typeof ScreenSizeView>

export const CursorView = Type.Object({ x: Type.Integer(), y: Type.Integer() })
export type CursorView = Static<typeof CursorView>

/** Body of PUT and response of GET. */
export const Clipboard = Type.Object({ text: Type.String() })
export type Clipboard = Static<typeof Clipboard>

export const OpenBody = Type.Object({ target: Type.String({ minLength: 1, description: 'File or URL to open.' }) })
export type OpenBody = Static<typeof OpenBody>

export const LaunchBody = Type.Object({
  application: Type.String({ minLength: 1, description: 'Name of an installed application.' }),
  uri: optionalNull(Type.String({ description: 'File or URL that the application opens.' })),
})
export type LaunchBody = Static<typeof LaunchBody>

export const MOUSE_BUTTONS = ['left', 'middle', 'right'] as const
export type MouseButton = (typeof MOUSE_BUTTONS)[number]
const Button = Type.Enum(MOUSE_BUTTONS, { description: 'Defaults to left.' })

const Point = Type.Object({ x: Pixels, y: Pixels })

export const MouseMoveBody = Point
export type MouseMoveBody = Static<typeof MouseMoveBody>

export const MouseClickBody = Type.Object({
  button: optionalNull(Button),
  count: optionalNull(
    Type.Integer({ minimum: 1, maximum: REPEAT_MAX, description: 'Number of clicks. Defaults to 1.' }),
  ),
  x: optionalNull(Pixels),
  y: optionalNull(Pixels),
})
export type MouseClickBody = Static<typeof MouseClickBody>

/** The invalid field and its error. Both coordinates are given, or neither. */
export function checkMouseClick(body: MouseClickBody): { field: 'x' | 'y'; text: string } | undefined {
  const hasX = typeof body.x === 'number'
  const hasY = typeof body.y === 'number'
  return hasX === hasY ? undefined : { field: hasX ? 'y' : 'x', text: 'is required: give both x and y, or neither' }
}

export const MouseScrollBody = Type.Object({
  direction: optionalNull(Type.Enum(['up', 'down'], { description: 'Defaults to down.' })),
  amount: optionalNull(
    Type.Integer({ minimum: 1, maximum: REPEAT_MAX, description: 'Number of steps. Defaults to 1.' }),
  ),
})
export type MouseScrollBody = Static<typeof MouseScrollBody>

export const MouseDragBody = Type.Object({ from: Point, to: Point })
export type MouseDragBody = Static<typeof MouseDragBody>

/** Body of mouse down and mouse up. */
export const MouseButtonBody = Type.Object({ button: optionalNull(Button) })
export type MouseButtonBody = Static<typeof MouseButtonBody>

export const KeyboardTypeBody = Type.Object({
  text: Type.String(),
  delay_in_ms: optionalNull(
    Type.Integer({ minimum: 0, maximum: TYPE_DELAY_MAX_MS, description: 'Delay between two characters.' }),
  ),
})
export type KeyboardTypeBody = Static<typeof KeyboardTypeBody>

/** Body of key press, key down and key up. */
export const KeyboardKeysBody = Type.Object({
  keys: Type.Array(Type.String({ minLength: 1 }), {
    minItems: 1,
    description: 'Keys pressed together, for example ["ctrl", "c"].',
  }),
})
export type KeyboardKeysBody = Static<typeof KeyboardKeysBody>
