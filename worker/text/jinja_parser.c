#include "worker/text/jinja_parser.h"

#include "worker/text/jinja_expression.h"

static struct pd_jinja_node *body_until(struct pd_jinja_parser *parser, const char *const *ends);

static void expect_end(struct pd_jinja_parser *parser, enum pd_jinja_token_kind kind)
{
    if (parser->token.kind != kind)
        pd_jinja_refuse(parser, PD_INVALID, "expected the tag to end here");
    else
        pd_jinja_advance(parser);
}

/* Names that a value is bound to: `a`, `a, b` or `(a, b)`. */
static struct pd_jinja_node *target_names(struct pd_jinja_parser *parser)
{
    bool closed = pd_jinja_accept_operator(parser, "(");
    struct pd_jinja_node *first = NULL, **last = &first;

    do {
        struct pd_jinja_node *name = pd_jinja_node_new(parser, PD_JINJA_NAME);

        if (!name)
            return NULL;
        name->text = pd_jinja_expect_name(parser);
        *last = name;
        last = &name->next;
    } while (!parser->failed && pd_jinja_accept_operator(parser, ","));
    if (closed)
        pd_jinja_expect_operator(parser, ")");
    return first;
}

static struct pd_jinja_node *if_statement(struct pd_jinja_parser *parser)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const end[] = {"endif", NULL};
    struct pd_jinja_node *result = pd_jinja_node_new(parser, PD_JINJA_IF);

    if (!result)
        return NULL;
    result->a = pd_jinja_expression_or_tuple(parser);
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    result->body = body_until(parser, ends);
    if (pd_jinja_accept_name(parser, "elif")) {
        if (++parser->depth > PD_JINJA_DEPTH_MAX)
            return pd_jinja_refuse(parser, PD_INVALID, "statements are nested too deeply");
        result->other = if_statement(parser); /* consumes the endif */
        parser->depth--;
        return result;
    }
    if (pd_jinja_accept_name(parser, "else")) {
        expect_end(parser, PD_JINJA_T_BLOCK_END);
        result->other = body_until(parser, end);
    }
    pd_jinja_accept_name(parser, "endif");
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    return result;
}

static struct pd_jinja_node *for_statement(struct pd_jinja_parser *parser)
{
    static const char *const ends[] = {"else", "endfor", NULL}, *const end[] = {"endfor", NULL};
    struct pd_jinja_node *result = pd_jinja_node_new(parser, PD_JINJA_FOR);

    if (!result)
        return NULL;
    result->names = target_names(parser);
    if (!pd_jinja_accept_name(parser, "in"))
        return pd_jinja_refuse(parser, PD_INVALID, "expected 'in'");
    result->a = pd_jinja_condition(parser); /* `if` behind it filters the loop */
    if (pd_jinja_accept_name(parser, "if"))
        result->b = pd_jinja_expression(parser);
    if (pd_jinja_at_name(parser, "recursive"))
        return pd_jinja_refuse(parser, PD_UNSUPPORTED, "recursive loops are not supported");
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    parser->loops++;
    result->body = body_until(parser, ends);
    parser->loops--;
    if (pd_jinja_accept_name(parser, "else")) {
        expect_end(parser, PD_JINJA_T_BLOCK_END);
        result->other = body_until(parser, end);
    }
    pd_jinja_accept_name(parser, "endfor");
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    return result;
}

static struct pd_jinja_node *filter_chain(struct pd_jinja_parser *parser)
{
    struct pd_jinja_node *chain = pd_jinja_filter_of(parser, NULL);

    while (!parser->failed && pd_jinja_accept_operator(parser, "|"))
        chain = pd_jinja_filter_of(parser, chain);
    return chain;
}

static struct pd_jinja_node *set_statement(struct pd_jinja_parser *parser)
{
    static const char *const end[] = {"endset", NULL};
    struct pd_jinja_node *result = pd_jinja_node_new(parser, PD_JINJA_SET);

    if (!result)
        return NULL;
    result->names = target_names(parser);
    if (result->names && pd_jinja_accept_operator(parser, ".")) /* namespace attribute */
        result->text = pd_jinja_expect_name(parser);
    if (pd_jinja_accept_operator(parser, "=")) {
        result->a = pd_jinja_expression_or_tuple(parser);
        expect_end(parser, PD_JINJA_T_BLOCK_END);
        return result;
    }
    result->kind = PD_JINJA_SET_BLOCK;
    if (pd_jinja_accept_operator(parser, "|"))
        result->a = filter_chain(parser);
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    result->body = body_until(parser, end);
    pd_jinja_accept_name(parser, "endset");
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    return result;
}

static struct pd_jinja_node *macro_statement(struct pd_jinja_parser *parser)
{
    static const char *const end[] = {"endmacro", NULL};
    struct pd_jinja_node *result = pd_jinja_node_new(parser, PD_JINJA_MACRO_DEF), **last;

    if (!result)
        return NULL;
    result->text = pd_jinja_expect_name(parser);
    pd_jinja_expect_operator(parser, "(");
    last = &result->names;
    while (!parser->failed && !pd_jinja_at_operator(parser, ")")) {
        struct pd_jinja_node *name = pd_jinja_node_new(parser, PD_JINJA_NAME);

        if (!name)
            return NULL;
        name->text = pd_jinja_expect_name(parser);
        if (pd_jinja_accept_operator(parser, "="))
            name->a = pd_jinja_expression(parser);
        *last = name;
        last = &name->next;
        if (!pd_jinja_accept_operator(parser, ","))
            break;
    }
    pd_jinja_expect_operator(parser, ")");
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    result->body = body_until(parser, end);
    pd_jinja_accept_name(parser, "endmacro");
    if (parser->token.kind == PD_JINJA_T_NAME)
        pd_jinja_advance(parser); /* {% endmacro name %} */
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    return result;
}

static struct pd_jinja_node *filter_statement(struct pd_jinja_parser *parser)
{
    static const char *const end[] = {"endfilter", NULL};
    struct pd_jinja_node *result = pd_jinja_node_new(parser, PD_JINJA_FILTER_BLOCK);

    if (!result)
        return NULL;
    result->a = filter_chain(parser);
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    result->body = body_until(parser, end);
    pd_jinja_accept_name(parser, "endfilter");
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    return result;
}

/* {% generation %}, which marks an assistant's text for training, changes nothing here. */
static struct pd_jinja_node *generation_statement(struct pd_jinja_parser *parser)
{
    static const char *const end[] = {"endgeneration", NULL};
    struct pd_jinja_node *result = pd_jinja_node_new(parser, PD_JINJA_IF);

    expect_end(parser, PD_JINJA_T_BLOCK_END);
    if (!result)
        return NULL;
    result->a = pd_jinja_constant(parser, pd_jinja_bool(true));
    result->body = body_until(parser, end);
    pd_jinja_accept_name(parser, "endgeneration");
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    return result;
}

static struct pd_jinja_node *loop_control(struct pd_jinja_parser *parser,
                                          enum pd_jinja_node_kind kind)
{
    struct pd_jinja_node *result = pd_jinja_node_new(parser, kind);

    if (parser->loops == 0)
        return pd_jinja_refuse(parser, PD_INVALID, "break or continue outside a loop");
    expect_end(parser, PD_JINJA_T_BLOCK_END);
    return result;
}

static struct pd_jinja_node *statement(struct pd_jinja_parser *parser)
{
    struct pd_string word = parser->token.text;

    if (parser->token.kind != PD_JINJA_T_NAME)
        return pd_jinja_refuse(parser, PD_INVALID, "expected a statement");
    if (pd_jinja_accept_name(parser, "if"))
        return if_statement(parser);
    if (pd_jinja_accept_name(parser, "for"))
        return for_statement(parser);
    if (pd_jinja_accept_name(parser, "set"))
        return set_statement(parser);
    if (pd_jinja_accept_name(parser, "macro"))
        return macro_statement(parser);
    if (pd_jinja_accept_name(parser, "filter"))
        return filter_statement(parser);
    if (pd_jinja_accept_name(parser, "generation"))
        return generation_statement(parser);
    if (pd_jinja_accept_name(parser, "break"))
        return loop_control(parser, PD_JINJA_BREAK);
    if (pd_jinja_accept_name(parser, "continue"))
        return loop_control(parser, PD_JINJA_CONTINUE);
    return pd_jinja_refuse(parser, PD_UNSUPPORTED, "the statement '%.*s' is not supported",
                           (int)(word.length < 64 ? word.length : 64), word.bytes);
}

static bool at_any(const struct pd_jinja_parser *parser, const char *const *names)
{
    for (; names && *names; names++)
        if (pd_jinja_at_name(parser, *names))
            return true;
    return false;
}

/* Statements up to a block tag that begins with one of `ends` (NULL: to the template's end). Stops
 * on that word, behind its `{%`. */
static struct pd_jinja_node *body_until(struct pd_jinja_parser *parser, const char *const *ends)
{
    struct pd_jinja_node *first = NULL, **last = &first;

    if (++parser->depth > PD_JINJA_DEPTH_MAX)
        return pd_jinja_refuse(parser, PD_INVALID, "statements are nested too deeply");
    while (!parser->failed) {
        struct pd_jinja_node *item = NULL;

        if (parser->token.kind == PD_JINJA_T_END) {
            if (ends)
                return pd_jinja_refuse(parser, PD_INVALID,
                                       "the template ends, but {%% %s %%} is missing", ends[0]);
            break;
        }
        if (parser->token.kind == PD_JINJA_T_DATA) {
            item = pd_jinja_node_new(parser, PD_JINJA_DATA);
            if (item)
                item->text = parser->token.text;
            pd_jinja_advance(parser);
        } else if (parser->token.kind == PD_JINJA_T_OUTPUT) {
            pd_jinja_advance(parser);
            item = pd_jinja_node_with(parser, PD_JINJA_PRINT, pd_jinja_expression_or_tuple(parser),
                                      NULL);
            expect_end(parser, PD_JINJA_T_OUTPUT_END);
        } else {
            pd_jinja_advance(parser); /* {% */
            if (at_any(parser, ends))
                break;
            item = statement(parser);
        }
        if (!item)
            return NULL;
        *last = item;
        last = &item->next;
    }
    parser->depth--;
    return first;
}

int pd_jinja_parse(const char *source, size_t length, struct pd_arena *arena,
                   struct pd_jinja_node **body, struct pd_error *error)
{
    struct pd_jinja_parser parser = {.arena = arena, .error = error};

    pd_jinja_lexer_init(&parser.lexer, source, length, arena);
    pd_jinja_advance(&parser);
    *body = body_until(&parser, NULL);
    return parser.failed ? error ? error->status : PD_INVALID : PD_OK;
}
